"""loopfile promises no more than its disk can hold, unless its administrator does."""

import os
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.node.volumes.images import DRIVER, MIB, Make

from nodeplug import Exhausted, OutOfRange, VolumeCapacity, VolumeExpand, VolumeId, VolumeSnapshotDelete
from nodeplug.testing.waiting import until
from nodeplug_volumes import filesystem
from nodeplug_volumes.filesystem import FsType

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


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
