"""How large a volume of loopfile is, and how it grows."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.images import DRIVER, MIB
from tests.node.volumes.loopfile.flexvolume.calls import OPTIONS, size_of, succeeded

from nodeplug import (
    OutOfRange,
    VolumeExpand,
    VolumeId,
    VolumeStatsRequest,
    mount,
    unmount,
)

pytestmark = pytest.mark.node
needs_loop_devices = pytest.mark.usefixtures("has_loop_devices")


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_the_size_is_a_hard_limit(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    with pytest.raises(OSError, match="No space left on device"):
        (target / "big").write_bytes(bytes(17 * MIB))


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_preallocate_reserves_the_whole_size(make_node: Any, make_plugin: Any, directory: Path) -> None:
    node = make_node(loopfile=make_plugin(preallocate=True))
    assert succeeded(node.mount(DRIVER, node.target("a"), OPTIONS))
    assert (directory / "data.img").stat().st_blocks * 512 >= 15 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@needs_loop_devices
def test_a_larger_size_grows_ext4_at_the_next_mount_and_keeps_the_data(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    (target / "x").write_text("kept")
    before = size_of(target)
    node.unmount(DRIVER, target)
    assert succeeded(node.mount(DRIVER, target, OPTIONS | {"size": "48Mi"}))
    assert size_of(target) > before + 24 * MIB
    assert (target / "x").read_text() == "kept"


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@needs_loop_devices
def test_a_growth_that_was_killed_after_the_file_grew_is_finished(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    os.truncate(directory / "data.img", 48 * MIB)
    node.mount(DRIVER, target, OPTIONS | {"size": "48Mi"})
    assert size_of(target) > 40 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_smaller_size_leaves_the_volume_as_it_is(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    assert succeeded(node.mount(DRIVER, target, OPTIONS | {"size": "8Mi"}))
    assert (directory / "data.img").stat().st_size == 16 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@needs_loop_devices
def test_a_second_pod_with_a_larger_size_grows_the_image_while_it_is_mounted(
    node: Any, target: Path, directory: Path, loops: Any
) -> None:
    node.mount(DRIVER, target, OPTIONS)
    (target / "x").write_text("kept")
    assert succeeded(node.mount(DRIVER, node.target("b"), OPTIONS | {"size": "48Mi"}))
    assert ((directory / "data.img").stat().st_size, len(loops())) == (48 * MIB, 1)
    assert (target / "x").read_text() == "kept"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_the_default_size_is_for_new_volumes_alone(make_node: Any, make_plugin: Any, directory: Path) -> None:
    node = make_node(loopfile=make_plugin(default_size="48Mi"))
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    assert succeeded(node.mount(DRIVER, target, {"name": "data"}))
    assert (directory / "data.img").stat().st_size == 16 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_new_volume_without_a_size_gets_the_default(make_node: Any, make_plugin: Any, directory: Path) -> None:
    node = make_node(loopfile=make_plugin(default_size="48Mi"))
    assert succeeded(node.mount(DRIVER, node.target("a"), {"name": "data"}))
    assert (directory / "data.img").stat().st_size == 48 * MIB


@pytest.fixture
def small_disk(area: Path, directory: Path) -> Iterator[Path]:
    directory.mkdir()
    mount("tmpfs", str(directory), "tmpfs", options=("size=2M",))
    yield directory
    unmount(str(directory), lazy=True)


@needs_loop_devices
@pytest.mark.parametrize("preallocate", [True, False])
def test_a_full_disk_is_told_with_numbers_and_leaves_no_image(
    small_disk: Path, make_node: Any, make_plugin: Any, *, preallocate: bool
) -> None:
    (small_disk / "filler").write_bytes(bytes(2 * MIB - 8192))
    node = make_node(loopfile=make_plugin(preallocate=preallocate))
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert "free of 2Mi" in answer["message"]
    assert [path.name for path in small_disk.iterdir()] == ["filler"]


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_stats_tell_the_size_of_the_volume(node: Any, target: Path, make_plugin: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    request = VolumeStatsRequest(driver=DRIVER, volume_id=VolumeId("data"), mount_path=str(target))
    stats = make_plugin().volume_stats(request)
    assert 8 * MIB < stats.total < 16 * MIB
    assert stats.used + stats.available <= stats.total


def test_a_new_volume_without_a_size_is_refused(node: Any, target: Path) -> None:
    assert "set the option size" in node.mount(DRIVER, target, {"name": "data"})["message"]


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_an_existing_volume_is_mounted_without_a_size(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    assert succeeded(node.mount(DRIVER, target, {"name": "data"}))


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@needs_loop_devices
def test_a_larger_size_of_a_mounted_ext4_is_reached_at_once_or_at_the_next_mount(node: Any, target: Path) -> None:
    # Growing a mounted ext4 takes CAP_SYS_RESOURCE, which root in a container may lack.
    node.mount(DRIVER, target, OPTIONS)
    new, old = str(48 * MIB), str(16 * MIB)
    answer = node.call(DRIVER, "expandfs", '{"name": "data", "size": "16Mi"}', "", str(target), new, old)
    if answer["status"] == "Failure":
        assert "resize2fs cannot grow" in answer["message"]
        node.unmount(DRIVER, target)
        node.mount(DRIVER, target, OPTIONS)
    assert size_of(target) > 40 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
@needs_loop_devices
def test_expandvolume_answers_the_size_and_the_next_mount_has_it(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    sizes = str(48 * MIB), str(16 * MIB)
    answers = [node.call(DRIVER, "expandvolume", '{"name": "data"}', str(target), *sizes) for _ in range(2)]
    assert answers == [{"status": "Success", "volumeNewSize": 48 * MIB}] * 2
    node.mount(DRIVER, target, OPTIONS)
    assert size_of(target) > 40 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_volume_is_not_grown_beyond_the_limit(node: Any, target: Path, make_plugin: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    request = VolumeExpand(
        driver=DRIVER, volume_id=VolumeId("data"), options={"name": "data"}, new_size=48 * MIB, limit=47 * MIB
    )
    with pytest.raises(OutOfRange, match="would have 48Mi, and at most 47Mi is asked for"):
        make_plugin().volume_expand(request)


def test_expandfs_of_a_volume_without_an_image_is_a_failure(node: Any, target: Path) -> None:
    answer = node.call(DRIVER, "expandfs", '{"name": "none"}', "", str(target), "99999999", "1")
    assert "has no image" in answer["message"]
