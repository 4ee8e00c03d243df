"""Copies and snapshots that take longer than a call."""

import os
import threading
from pathlib import Path

import pytest
from tests.disks import attached_disk
from tests.node.volumes.images import MIB, Make, Node

from nodeplug import AlreadyExists, TryAgain
from nodeplug.testing.waiting import until
from nodeplug_volumes import copying

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_copy_that_takes_long_goes_on_and_is_found_by_the_next_call(
    node: Node, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("a", 16 * MIB)
    node.write("a", "kept")
    with pytest.raises(TryAgain, match=r"a is being copied to b: \d+ %"):
        node.create("b", 16 * MIB, source="a")
    with pytest.raises(TryAgain, match="copied"):
        node.stage("a")  # it would change under the copy
    node.create("a2", 16 * MIB)
    with pytest.raises(AlreadyExists, match=r"'b' is being made: .* from volume 'a'; now .* from volume 'a2'"):
        node.create("b", 16 * MIB, source="a2")
    monkeypatch.setattr(copying, "PATIENCE", 60.0)
    held.set()
    until(lambda: "b.img" in node.files)  # whoever asks again before it is complete, or after that
    assert node.create("b", 16 * MIB, source="a") == "b"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_snapshot_that_is_being_taken_of_one_volume_is_refused_for_another(
    node: Node, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("a", 16 * MIB)
    node.create("a2", 16 * MIB)
    with pytest.raises(TryAgain, match="a is being copied to s"):
        node.snapshot("a", "s")
    with pytest.raises(AlreadyExists, match=r"'s' is being made: .* from volume 'a'; now .* from volume 'a2'"):
        node.snapshot("a2", "s")
    monkeypatch.setattr(copying, "PATIENCE", 60.0)
    held.set()
    until(lambda: any(name.endswith("s.img") for name in node.files))
    assert node.snapshot("a", "s") == "s"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_of_two_copies_of_one_volume_the_second_begins_when_the_first_has_ended(
    node: Node, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("a", 16 * MIB)
    node.write("a", "kept")
    with pytest.raises(TryAgain, match=r"a is being copied to b: \d+ %"):
        node.create("b", 16 * MIB, source="a")
    with pytest.raises(TryAgain, match="copied for an earlier call; ask again after that"):
        node.create("c", 16 * MIB, source="a")
    assert "c.img" not in node.files
    monkeypatch.setattr(copying, "PATIENCE", 60.0)
    held.set()
    for name in ("b", "c"):
        assert node.create(name, 16 * MIB, source="a") == name
        assert node.read(name) == "kept"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_copy_that_takes_long_asks_for_its_room_once(make: Make, held: threading.Event) -> None:
    node = make(max_total=40 * MIB)
    node.create("a")
    node.write("a", "kept")
    for _ in range(2):
        with pytest.raises(TryAgain, match="a is being copied to b"):
            node.create("b", source="a")
    held.set()
    until(lambda: "b.img" in node.files, 60.0)
    assert node.create("b", source="a") == "b"
    assert node.read("b") == "kept"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_the_end_of_the_plugin_waits_for_a_copy(
    node: Node, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("a")
    node.write("a", "kept")
    with pytest.raises(TryAgain, match="a is being copied to b"):
        node.create("b", source="a")
    monkeypatch.setattr(copying, "_ENDS_WITHIN", 60.0)
    ending = threading.Thread(target=node.plugin.stop)
    ending.start()
    ending.join(0.2)
    assert ending.is_alive()
    held.set()
    ending.join(60)
    assert "b.img" in node.files


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_the_end_of_the_plugin_waits_only_for_a_while_for_a_copy_that_does_not_end(
    node: Node, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.create("a")
    with pytest.raises(TryAgain, match="a is being copied to b"):
        node.create("b", source="a")
    monkeypatch.setattr(copying, "_ENDS_WITHIN", 0.1)
    ending = threading.Thread(target=node.plugin.stop, daemon=True)
    ending.start()
    ending.join(30)  # the copy is held for longer
    assert (ending.is_alive(), held.is_set()) == (False, False)


@pytest.mark.whole
@pytest.mark.programs("e2fsck")
def test_a_snapshot_that_takes_long_asks_for_its_room_once(tmp_path: Path, make: Make, held: threading.Event) -> None:
    with attached_disk(tmp_path / "disk", "ext4", "400M") as disk:
        node = make(disk)
        node.create("a", 160 * MIB)
        (node.stage("a") / "big").write_bytes(os.urandom(130 * MIB))
        node.unstage("a")
        with pytest.raises(TryAgain):
            node.snapshot("a", "s")
        until(lambda: (disk / "snapshots/.s.img.new").stat().st_blocks * 512 > 120 * MIB, 60.0)
        with pytest.raises(TryAgain):
            node.snapshot("a", "s")
        held.set()
        until(lambda: "snapshots/s.img" in node.files, 60.0)
        assert node.snapshot("a", "s") == "s"


@pytest.mark.whole
@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_copy_that_nobody_wants_any_more_ends(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    node.create("a", 256 * MIB)
    (node.stage("a") / "big").write_bytes(os.urandom(128 * MIB))
    node.unstage("a")
    monkeypatch.setattr(copying, "PATIENCE", 0.0)
    with pytest.raises(TryAgain):
        node.create("b", 256 * MIB, source="a")
    node.delete("b")
    assert node.files == ["a.img", "a.json"]
    node.stage("a")
