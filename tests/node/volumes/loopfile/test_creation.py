"""Volumes of loopfile that are created, found again and deleted: real images and filesystems."""

from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk
from tests.node.volumes.images import MIB, Make, Node

from nodeplug import AlreadyExists, InUse, OutOfRange
from nodeplug_volumes import filesystem
from nodeplug_volumes.filesystem import FsType

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


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
