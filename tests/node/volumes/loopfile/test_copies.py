"""Copies and snapshots of the volumes of loopfile, on disks that share blocks and on others."""

import os
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.images import DRIVER, MIB, Make, Node

from nodeplug import InUse, InvalidRequest, NotFound, OutOfRange, VolumeSnapshotDelete
from nodeplug_volumes import extents

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


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


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ({"source": "none"}, "volume 'none'"),
        ({"snapshot": "none"}, "snapshot 'none'"),
        ({"source": "../etc"}, r"volume '\.\./etc'"),
    ],
)
def test_a_source_that_is_not_here_is_not_found(node: Node, source: dict[str, Any], what: str) -> None:
    with pytest.raises(NotFound, match=f"there is no {what} here to copy; it may be on another node"):
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
