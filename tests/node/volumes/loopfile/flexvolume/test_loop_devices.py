"""The loop devices of volumes of loopfile: one for each image, and none that is left."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.images import DRIVER, MIB
from tests.node.volumes.loopfile.flexvolume.calls import OPTIONS, run, succeeded

from nodeplug import (
    Exhausted,
    NotReady,
    VolumeCreate,
    mount,
    unmount,
)
from nodeplug_volumes import loopdev

pytestmark = pytest.mark.node
needs_loop_devices = pytest.mark.usefixtures("has_loop_devices")


@pytest.fixture
def empty_dev() -> Iterator[None]:
    """A `/dev` like that of a container or a chroot: without what the driver puts into the machine's."""
    mount("tmpfs", "/dev", "tmpfs", options=("mode=755",))
    os.mknod("/dev/null", 0o020666, os.makedev(1, 3))
    yield
    run("umount", "--lazy", "/dev")  # the uppermost alone


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_unmount_leaves_no_loop_device(node: Any, target: Path, loops: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    assert len(loops()) == 1
    node.unmount(DRIVER, target)
    assert loops() == {}


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_repeated_mount_and_unmount_leaks_nothing(node: Any, target: Path, loops: Any) -> None:
    for _ in range(5):
        assert succeeded(node.mount(DRIVER, target, OPTIONS))
        assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, loops(), node.records) == ([], {}, [])


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_two_pods_share_one_volume_and_one_loop_device(node: Any, target: Path, loops: Any) -> None:
    other = node.target("b")
    node.mount(DRIVER, target, OPTIONS)
    node.mount(DRIVER, other, OPTIONS)
    (target / "x").write_text("shared")
    assert (other / "x").read_text() == "shared"
    assert len(loops()) == 1


@pytest.mark.programs("e2fsck", "losetup", "mkfs.ext4")
@needs_loop_devices
def test_a_loop_device_that_a_killed_daemon_left_is_released(
    node: Any, target: Path, directory: Path, loops: Any
) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    run("losetup", "-f", str(directory / "data.img"))
    assert len(loops()) == 1
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert len(loops()) == 1
    assert succeeded(node.unmount(DRIVER, target))
    assert loops() == {}


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_volume_whose_staging_was_unmounted_by_hand_is_staged_on_the_same_device(
    node: Any, target: Path, loops: Any
) -> None:
    node.mount(DRIVER, target, OPTIONS)
    (target / "x").write_text("kept")
    unmount(str(next(node.staging_folder.glob("*/*"))))
    other = node.target("b")
    assert succeeded(node.mount(DRIVER, other, OPTIONS))
    assert (other / "x").read_text() == "kept"
    assert len(loops()) == 1


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_an_image_is_found_behind_its_loop_device_by_inode(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    image = directory / "data.img"
    other = directory / "elsewhere"
    other.mkdir()
    (other / "data.img").write_bytes(b"")
    assert len(loopdev.find(image)) == 1
    assert loopdev.find(other / "data.img") == []


@needs_loop_devices
def test_a_loop_device_ends_by_itself_when_nothing_was_mounted(directory: Path, loops: Any) -> None:
    directory.mkdir()
    image = directory / "data.img"
    image.write_bytes(bytes(MIB))
    with loopdev.attached(image):
        assert len(loopdev.find(image)) == 1
    assert loops() == {}


@pytest.mark.programs("umount")
@pytest.mark.usefixtures("empty_dev")
def test_without_loop_devices_a_mount_says_what_to_do_and_makes_no_image(
    node: Any, target: Path, directory: Path
) -> None:
    message = node.mount(DRIVER, target, OPTIONS)["message"]
    assert (
        "no loop devices here: /dev/loop-control is missing; load the driver (modprobe loop), and in a conta" in message
    )
    assert list(directory.iterdir()) == []


@pytest.mark.programs("umount")
@pytest.mark.usefixtures("empty_dev")
def test_without_loop_devices_it_is_not_ready(make_plugin: Any) -> None:
    with pytest.raises(NotReady, match="no loop devices here"):
        make_plugin().health()


@pytest.mark.programs("umount")
@pytest.mark.usefixtures("empty_dev")
def test_without_loop_devices_a_new_volume_is_sent_to_another_node(make_plugin: Any, directory: Path) -> None:
    with pytest.raises(Exhausted, match="no loop devices here"):
        make_plugin().volume_create(VolumeCreate(driver=DRIVER, name="one", size=16 << 20))
    assert list(directory.iterdir()) == []
