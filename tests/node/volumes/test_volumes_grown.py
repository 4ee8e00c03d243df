"""Volumes of loopfile that grow, under a pod or at rest: what the filesystem itself says of its size."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk
from tests.node.volumes.images import MIB, Node, images

from nodeplug_volumes import filesystem

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]
GROWTH = 256 * MIB
OVERHEAD = 0.8
"""Of what it gets, a filesystem keeps at most a fifth for itself."""


@pytest.fixture
def volume(request: pytest.FixtureRequest, area: Path, make_host: Any, tmp_path: Path) -> Iterator[Node]:
    """A volume `a` of a filesystem, of the least size that it can have."""
    with attached_disk(tmp_path / "disk", request.param, "2G") as disk, images(area, make_host) as make:
        node = make(disk / "images")
        node.create("a", filesystem.SMALLEST[request.param], fs_type=request.param)
        node.write("a", "kept")
        yield node


def room(place: Path) -> int:
    found = os.statvfs(place)
    return found.f_blocks * found.f_frsize


@pytest.mark.programs("btrfs", "xfs_growfs")
@pytest.mark.parametrize("volume", ["xfs", "btrfs"], indirect=True)
def test_a_filesystem_grows_under_a_pod_that_has_a_file_open(volume: Node) -> None:
    place = volume.stage("a")
    before, size = room(place), (volume.directory / "a.img").stat().st_size
    with (place / "file").open() as stream:
        assert volume.expand("a", size + GROWTH, place) == size + GROWTH
        assert room(place) >= before + GROWTH * OVERHEAD
        assert stream.read() == "kept"
    (place / "new").write_bytes(bytes(GROWTH // 2))


@pytest.mark.programs("btrfs", "e2fsck", "resize2fs", "xfs_growfs")
@pytest.mark.parametrize("volume", ["ext4", "xfs", "btrfs"], indirect=True)
def test_a_volume_at_rest_has_its_new_size_when_it_is_staged(volume: Node) -> None:
    place = volume.stage("a")
    before, size = room(place), (volume.directory / "a.img").stat().st_size
    volume.unstage("a")
    assert volume.expand("a", size + GROWTH) == size + GROWTH
    place = volume.stage("a")
    assert room(place) >= before + GROWTH * OVERHEAD
    assert (place / "file").read_text() == "kept"


@pytest.mark.programs("btrfs", "xfs_growfs")
@pytest.mark.parametrize("volume", ["xfs", "btrfs"], indirect=True)
def test_a_growth_under_a_pod_that_was_killed_after_the_file_grew_is_finished_when_it_is_repeated(
    volume: Node,
) -> None:
    place = volume.stage("a")
    before, image = room(place), volume.directory / "a.img"
    size = image.stat().st_size + GROWTH
    subprocess.run(["truncate", "-s", str(size), str(image)], check=True)
    assert volume.expand("a", size, place) == size
    assert room(place) >= before + GROWTH * OVERHEAD
