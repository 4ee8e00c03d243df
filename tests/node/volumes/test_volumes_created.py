"""Volumes of loopfile that are created, copied, snapshot, grown and deleted: real images, filesystems and devices."""

import os
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk
from tests.node.killing import every_step
from tests.node.volumes.images import DRIVER, MIB, Make, Node, images
from tests.node.volumes.killed_store import call

from nodeplug import (
    AlreadyExists,
    Exhausted,
    InUse,
    InvalidRequest,
    NotFound,
    OutOfRange,
    TryAgain,
    VolumeCapacity,
    VolumeExpand,
    VolumeId,
    VolumeSnapshotDelete,
)
from nodeplug.testing.waiting import until
from nodeplug_volumes import copying, extents, filesystem, loopdev
from nodeplug_volumes.filesystem import FsType

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


@pytest.fixture
def make(area: Path, make_host: Any) -> Iterator[Make]:
    with images(area, make_host) as one:
        yield one


@pytest.fixture
def reflinks(tmp_path: Path) -> Iterator[Path]:
    """A disk whose files can share blocks."""
    with attached_disk(tmp_path / "disk", "xfs", "1G") as disk:
        yield disk / "images"


@pytest.fixture
def node(make: Make) -> Node:
    return make()


# --- creating and deleting


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_created_volume_has_a_filesystem_and_keeps_its_data(node: Node) -> None:
    assert node.create("pvc-1") == "pvc-1"
    node.write("pvc-1", "kept")
    assert node.read("pvc-1") == "kept"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_repeated_creation_finds_the_volume_and_its_data(node: Node) -> None:
    node.create("pvc-1")
    node.write("pvc-1", "kept")
    node.create("pvc-1")
    assert node.read("pvc-1") == "kept"


@pytest.mark.programs("mkfs.ext4")
@pytest.mark.parametrize(
    "other",
    [{"size": 32 * MIB}, {"size": MIB, "limit": 8 * MIB}, {"fs_type": "xfs", "size": 16 * MIB}, {"block": True}],
)
def test_another_volume_of_that_name_is_refused(node: Node, other: dict[str, Any]) -> None:
    node.create("pvc-1", fs_type="ext4")
    with pytest.raises(AlreadyExists):
        node.create("pvc-1", **other)


def test_a_volume_that_a_pod_has_named_is_never_given_to_somebody_else(node: Node) -> None:
    (node.directory / "data.img").write_bytes(b"somebody's")
    with pytest.raises(AlreadyExists, match="a pod's options named it"):
        node.create("data")
    assert (node.directory / "data.img").read_bytes() == b"somebody's"


@pytest.mark.programs("mkfs.ext4")
def test_any_name_makes_a_volume_of_its_own(node: Node) -> None:
    names = ["../x", "a/b", "ä", "x" * 300]
    made = {node.create(name, MIB) for name in names}
    assert len(made) == len(names)
    assert {node.create(name, MIB) for name in names} == made
    assert not [name for name in node.files if "/" in name]


@pytest.mark.programs("mkfs.ext4")
def test_a_deleted_volume_leaves_nothing(node: Node) -> None:
    node.create("pvc-1")
    node.delete("pvc-1")
    node.delete("pvc-1")
    node.delete("../etc")
    assert node.files == []


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_volume_in_use_is_not_deleted(node: Node) -> None:
    node.create("pvc-1")
    node.stage("pvc-1")
    with pytest.raises(InUse, match="end its pods first"):
        node.delete("pvc-1")
    node.unstage("pvc-1")
    node.delete("pvc-1")


@pytest.mark.programs("btrfs", "e2fsck", "xfs_growfs")
@pytest.mark.parametrize("fs_type", ["ext4", "xfs", "btrfs"])
def test_a_size_below_the_least_of_a_filesystem_is_rounded_up_or_refused(
    make: Make, tmp_path: Path, fs_type: FsType
) -> None:
    with attached_disk(tmp_path / "disk", fs_type, "1G") as disk:  # skips where its tools are missing
        node = make(disk / "images")
        node.create("small", 1, fs_type=fs_type)
        size = (node.directory / "small.img").stat().st_size
        assert size == filesystem.SMALLEST[fs_type]
        with pytest.raises(OutOfRange, match="at most"):
            node.create("limited", 1, fs_type=fs_type, limit=size - 1)
        node.write("small", "kept")
        assert node.read("small") == "kept"


@pytest.mark.programs("mkfs.ext4")
def test_what_was_killed_in_the_middle_is_begun_anew(make: Make) -> None:
    node = make()
    node.create("whole")
    for name in (".pvc-1.img.new", ".pvc-1.json.new", "pvc-2.json"):
        (node.directory / name).write_text("{}")
    again = make()
    assert again.files == ["whole.img", "whole.json"]
    again.create("pvc-1")
    again.create("pvc-2")


# --- what the disk can hold


@pytest.mark.programs("mkfs.ext4")
def test_no_more_is_promised_than_the_disk_can_hold(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    before = node.room
    node.create("a", 512 * MIB)
    assert before - 520 * MIB < node.room <= before - 500 * MIB
    with pytest.raises(Exhausted, match="promised to volumes that have not written them yet"):
        node.create("b", node.room + 8 * MIB)
    request = VolumeExpand(driver=DRIVER, volume_id=VolumeId("a"), new_size=2048 * MIB)
    with pytest.raises(Exhausted):
        node.plugin.volume_expand(request)
    node.delete("a")
    until(lambda: node.room >= before - MIB)  # xfs frees a little later


@pytest.mark.programs("mkfs.ext4")
def test_a_volume_that_is_being_made_is_promised_its_room(
    reflinks: Path, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = make(reflinks)
    begun, going = threading.Event(), threading.Event()

    def slowly(image: Path, fs_type: FsType, *_: object) -> None:
        begun.set()
        assert going.wait(30)
        subprocess.run([f"/usr/sbin/mkfs.{fs_type}", "-q", "-F", str(image)], check=True)

    monkeypatch.setattr(filesystem, "make", slowly)
    with ThreadPoolExecutor() as others:
        first = others.submit(node.create, "a", 600 * MIB)
        assert begun.wait(30)
        try:
            with pytest.raises(Exhausted):
                node.create("b", 600 * MIB)
        finally:
            going.set()
        assert first.result() == "a"


@pytest.mark.programs("mkfs.ext4")
def test_an_administrator_may_promise_more(reflinks: Path, make: Make) -> None:
    node = make(reflinks, overcommit=4.0)
    node.create("a", 2048 * MIB)
    assert "a.img" in node.files


def test_a_volume_that_only_this_node_does_not_allow_is_sent_to_another_one(make: Make) -> None:
    node = make(max_size=32 * MIB)
    assert node.plugin.volume_capacity(VolumeCapacity(driver=DRIVER)).largest == 32 * MIB
    with pytest.raises(Exhausted, match="needs 64Mi; at most 32Mi is allowed on this node"):
        node.create("large", 64 * MIB)
    with pytest.raises(OutOfRange, match="at most 8Mi is asked for"):
        node.create("odd", 16 * MIB, limit=8 * MIB)
    assert node.files == []


def test_no_volume_is_larger_than_the_room_that_there_is(make: Make) -> None:
    node = make(max_size=1 << 60, max_total=64 * MIB)
    room = node.plugin.volume_capacity(VolumeCapacity(driver=DRIVER))
    assert (room.available, room.largest) == (64 * MIB, 64 * MIB)


@pytest.mark.programs("mkfs.ext4")
def test_all_volumes_together_have_a_limit(make: Make) -> None:
    node = make(max_total="40Mi")
    node.create("a")
    node.create("b")
    assert node.room == 8 * MIB
    with pytest.raises(Exhausted, match="of max_total, 40Mi"):
        node.create("c")


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_what_a_snapshot_shares_has_to_be_kept_for_its_volume(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    node.create("a", 128 * MIB)
    (node.stage("a") / "big").write_bytes(os.urandom(64 * MIB))
    node.unstage("a")
    before = node.room
    node.snapshot("a", "s")
    assert node.room <= before - 60 * MIB
    node.plugin.volume_snapshot_delete(VolumeSnapshotDelete(driver=DRIVER, snapshot_id="s"))
    until(lambda: node.room >= before - MIB)


@pytest.mark.programs("mkfs.ext4")
def test_a_disk_that_others_fill_is_told_as_the_condition_of_its_volumes(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    node.create("a", 512 * MIB)
    assert node.plugin.volume_list()[0].condition == ""
    with (reflinks.parent / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, 600 * MIB)
    assert "its volumes may still need" in node.plugin.volume_list()[0].condition


# --- copies and snapshots


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_snapshot_is_of_its_moment_though_a_pod_goes_on_writing(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    node.create("a", 64 * MIB)
    place = node.stage("a")
    (place / "file").write_text("before")
    assert node.snapshot("a", "s") == "s"
    (place / "file").write_text("after")
    node.create("b", 64 * MIB, snapshot="s")
    assert node.read("b") == "before"
    assert (place / "file").read_text() == "after"
    assert node.snapshot("a", "s") == "s"


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs", "xfs_growfs")
@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_a_volume_and_its_larger_copy_are_used_at_once(reflinks: Path, make: Make, fs_type: str) -> None:
    node = make(reflinks)
    node.create("a", 320 * MIB, fs_type=fs_type)
    node.write("a", "shared")
    node.create("b", 384 * MIB, source="a")
    first, second = node.stage("a"), node.stage("b")
    (second / "file").write_text("own")
    assert ((first / "file").read_text(), (second / "file").read_text()) == ("shared", "own")
    assert os.statvfs(second).f_blocks > os.statvfs(first).f_blocks


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_copy_has_what_a_pod_wrote_just_before(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    node.create("a", 64 * MIB)
    (node.stage("a") / "file").write_text("just now")
    node.create("b", 64 * MIB, source="a")
    assert node.read("b") == "just now"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_disk_that_can_share_copies_nothing(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    node.create("a", 128 * MIB)
    (node.stage("a") / "big").write_bytes(os.urandom(64 * MIB))
    node.unstage("a")
    node.create("b", 128 * MIB, source="a")
    descriptor = os.open(node.directory / "b.img", os.O_RDONLY)
    assert extents.shared(descriptor) >= 64 * MIB
    os.close(descriptor)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_disk_that_cannot_share_copies_an_idle_volume_with_its_holes(node: Node) -> None:
    node.create("a", 128 * MIB)
    node.write("a", "kept")
    node.create("b", 128 * MIB, source="a")
    assert node.read("b") == "kept"
    assert (node.directory / "b.img").stat().st_blocks * 512 < 64 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_disk_that_cannot_share_takes_no_snapshot_under_a_pod(node: Node) -> None:
    node.create("a")
    node.stage("a")
    with pytest.raises(InUse, match="keep the images on xfs"):
        node.snapshot("a", "s")
    assert not [name for name in node.files if name.endswith(".new")]
    node.unstage("a")
    assert node.snapshot("a", "s") == "s"


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Copies that have written most when they wait for this."""
    going, real = threading.Event(), extents.copy

    def copy(source: int, target: int, told: Callable[[int], bool]) -> bool:
        return real(source, target, told) and going.wait(60)

    monkeypatch.setattr(extents, "copy", copy)
    monkeypatch.setattr(copying, "PATIENCE", 0.5)
    yield going
    going.set()


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


@pytest.mark.parametrize("source", [{"source": "none"}, {"snapshot": "none"}, {"source": "../etc"}])
def test_a_source_that_is_not_here_is_not_found(node: Node, source: dict[str, Any]) -> None:
    with pytest.raises(NotFound, match="may be on another node"):
        node.create("b", **source)
    assert node.files == []


@pytest.mark.programs("mkfs.ext4")
def test_a_copy_is_as_its_source_or_refused(node: Node) -> None:
    node.create("a", 32 * MIB)
    for wrong, error in (
        ({"size": 16 * MIB}, OutOfRange),
        ({"size": 32 * MIB, "fs_type": "xfs"}, InvalidRequest),
        ({"size": 32 * MIB, "block": True}, InvalidRequest),
    ):
        with pytest.raises(error):
            node.create("b", source="a", **wrong)
    node.create("b", 0, source="a")
    assert (node.directory / "b.img").stat().st_size == 32 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_snapshot_outlives_its_volume(reflinks: Path, make: Make) -> None:
    node = make(reflinks)
    node.create("a", 64 * MIB)
    node.write("a", "kept")
    node.snapshot("a", "s")
    node.delete("a")
    assert [one.snapshot_id for one in node.plugin.volume_snapshot_list()] == ["s"]
    node.create("b", 64 * MIB, snapshot="s")
    assert node.read("b") == "kept"
    node.plugin.volume_snapshot_delete(VolumeSnapshotDelete(driver=DRIVER, snapshot_id="s"))
    assert node.files == ["b.img", "b.json"]


# --- block devices


def test_a_block_volume_is_a_device_that_keeps_its_data(node: Node) -> None:
    node.create("raw", block=True)
    device = node.stage("raw", block=True)
    with device.open("r+b", buffering=0) as stream:
        stream.write(b"mine")
        os.fsync(stream.fileno())
    node.unstage("raw")
    with node.stage("raw", block=True).open("rb", buffering=0) as stream:
        assert stream.read(4) == b"mine"


def test_a_block_volume_leaves_no_loop_device(node: Node, loops: Any) -> None:
    node.create("raw", block=True)
    node.stage("raw", block=True)
    assert len(loops()) == 1
    node.unstage("raw")
    assert loops() == {}


def test_a_loop_device_that_a_kill_left_is_released_when_it_is_staged_again(node: Node, loops: Any) -> None:
    node.create("raw", block=True)
    loopdev.attach(node.directory / "raw.img")
    node.stage("raw", block=True)
    assert len(loops()) == 1


@pytest.mark.programs("mkfs.ext4")
def test_a_block_volume_is_never_formatted(node: Node) -> None:
    node.create("raw", block=True)
    with pytest.raises(InvalidRequest, match="volumeMode Block"):
        node.stage("raw")
    node.create("fs")
    with pytest.raises(InvalidRequest, match="volumeMode Filesystem"):
        node.stage("fs", block=True)


def test_a_block_volume_grows_in_use(node: Node) -> None:
    node.create("raw", block=True)
    device = node.stage("raw", block=True)
    request = VolumeExpand(driver=DRIVER, volume_id=VolumeId("raw"), new_size=32 * MIB, mount_path=str(device))
    assert node.plugin.volume_expand(request) == 32 * MIB
    with device.open("rb") as stream:
        assert stream.seek(0, os.SEEK_END) == 32 * MIB


# --- killed

ENDS = {
    "create": ["new.img", "new.json", "snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
    "copy": ["new.img", "new.json", "snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
    "restore": ["new.img", "new.json", "snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
    "snapshot": [
        *("snapshots/new.img", "snapshots/new.json", "snapshots/taken.img", "snapshots/taken.json"),
        *("source.img", "source.json"),
    ],
    "delete": ["snapshots/taken.img", "snapshots/taken.json"],
    "delete snapshot": ["source.img", "source.json"],
    "grow": ["snapshots/taken.img", "snapshots/taken.json", "source.img", "source.json"],
}


def kills() -> list[Any]:
    """Give each call on both kinds of disks, of which the quick suite has those that take other steps than others."""
    quick = {("create", False), ("delete", False)}
    return [
        pytest.param(verb, can_share, marks=() if (verb, can_share) in quick else pytest.mark.whole)
        for verb in ENDS
        for can_share in (True, False)
    ]


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@pytest.mark.parametrize(("verb", "can_share"), kills())
def test_a_call_that_is_killed_at_any_change_is_finished_when_it_is_repeated(
    tmp_path: Path, area: Path, make: Make, verb: str, *, can_share: bool
) -> None:
    disk = attached_disk(tmp_path / "disk", "xfs", "1G") if can_share else nullcontext(tmp_path)
    with disk as root:
        made: list[Node] = []

        def words() -> list[str]:
            folder = root / str(len(made))
            (folder / "host").mkdir(parents=True)
            node = make(folder / "images")
            node.create("source")
            node.write("source", "kept")
            node.snapshot("source", "taken")
            made.append(node)
            return [str(folder), verb]

        def assert_it_is_finished() -> None:
            node = made[-1]
            node.plugin.start()
            assert not [name for name in node.files if ".new" in name]
            call(node.plugin, verb)
            assert node.files == ENDS[verb]
            for name in [name for name in ("source", "new") if f"{name}.img" in node.files and verb != "create"]:
                assert node.read(name) == "kept"
            shutil.rmtree(root / str(len(made) - 1))

        for _ in every_step("tests.node.volumes.killed_store", words, least=1):
            assert_it_is_finished()
        assert_it_is_finished()  # nor does the one that was not killed do harm
