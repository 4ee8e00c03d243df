"""loopfile through the FlexVolume front: real images, loop devices, mkfs, fsck and growth."""

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    Exhausted,
    InvalidRequest,
    NotFound,
    NotReady,
    OutOfRange,
    VolumeCreate,
    VolumeExpand,
    VolumeId,
    VolumeIdentify,
    VolumeStage,
    VolumeStatsRequest,
    mount,
    mounted_at,
    unmount,
)
from nodeplug_volumes import filesystem, loopdev
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig

pytestmark = pytest.mark.node
needs_loop_devices = pytest.mark.usefixtures("has_loop_devices")
DRIVER = "nodeplug/loopfile"
MIB = 1 << 20
OPTIONS = {"name": "data", "size": "16Mi"}


@pytest.fixture
def directory(area: Path) -> Path:
    return area / "images"


@pytest.fixture
def make_plugin(make_host: Any, directory: Path) -> Any:
    def make(**config: Any) -> LoopFile:
        plugin = LoopFile(LoopFileConfig(**({"directory": directory} | config)), make_host("loopfile"))
        plugin.start()
        return plugin

    return make


@pytest.fixture
def empty_dev() -> Iterator[None]:
    """A `/dev` like that of a container or a chroot: without what the driver puts into the machine's."""
    mount("tmpfs", "/dev", "tmpfs", options=("mode=755",))
    os.mknod("/dev/null", 0o020666, os.makedev(1, 3))
    yield
    run("umount", "--lazy", "/dev")  # the uppermost alone


@pytest.fixture
def node(make_node: Any, make_plugin: Any) -> Any:
    return make_node(loopfile=make_plugin())


@pytest.fixture
def target(node: Any) -> Path:
    path: Path = node.target("a")
    return path


def run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


def succeeded(answer: dict[str, Any]) -> bool:
    return answer == {"status": "Success"}


def size_of(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_data_outlives_unmount_and_mount(node: Any, target: Path) -> None:
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    (target / "x").write_text("kept")
    assert succeeded(node.unmount(DRIVER, target))
    assert not (target / "x").exists()
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert (target / "x").read_text() == "kept"


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_the_size_is_a_hard_limit(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    with pytest.raises(OSError, match="No space left on device"):
        (target / "big").write_bytes(bytes(17 * MIB))


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


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_the_image_is_readable_by_root_alone_and_sparse(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS | {"size": "512Mi"})
    status = (directory / "data.img").stat()
    assert status.st_mode & 0o777 == 0o600
    assert (status.st_size, status.st_blocks * 512 < 64 * MIB) == (512 * MIB, True)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_preallocate_reserves_the_whole_size(make_node: Any, make_plugin: Any, directory: Path) -> None:
    node = make_node(loopfile=make_plugin(preallocate=True))
    assert succeeded(node.mount(DRIVER, node.target("a"), OPTIONS))
    assert (directory / "data.img").stat().st_blocks * 512 >= 15 * MIB


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_volumes_are_mounted_without_setuid_and_devices(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    found = mounted_at(str(target))
    assert found is not None
    assert {"nosuid", "nodev"} <= set(found.options)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_read_only_pod_cannot_write(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS | {"kubernetes.io/readwrite": "ro"})
    with pytest.raises(OSError, match="Read-only"):
        (target / "x").write_text("")


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
def test_a_second_pod_that_asks_for_another_filesystem_is_refused(node: Any, target: Path, loops: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    answer = node.mount(DRIVER, node.target("b"), OPTIONS | {"kubernetes.io/fsType": "xfs"})
    assert "its image holds ext4 already" in answer["message"]
    assert "pods/b" not in node.mounted
    assert len(loops()) == 1


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


def test_a_filesystem_that_loopfile_does_not_make_is_refused(node: Any, target: Path) -> None:
    answer = node.mount(DRIVER, target, OPTIONS | {"kubernetes.io/fsType": "ntfs"})
    assert "loopfile makes ext4, xfs, btrfs" in answer["message"]


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_another_filesystem_than_the_image_holds_is_refused(node: Any, target: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    answer = node.mount(DRIVER, target, OPTIONS | {"fsType": "xfs"})
    assert "its image holds ext4 already" in answer["message"]


def test_an_image_with_foreign_data_is_never_formatted(node: Any, target: Path, directory: Path) -> None:
    image = directory / "data.img"
    image.write_bytes(b"precious" * 100_000)
    before = image.read_bytes()
    answer = node.mount(DRIVER, target, OPTIONS)
    assert "left alone" in answer["message"]
    assert image.read_bytes() == before


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_an_image_that_is_one_hole_gets_a_filesystem(node: Any, target: Path, directory: Path) -> None:
    image = directory / "data.img"
    image.touch()
    os.truncate(image, 16 * MIB)
    assert succeeded(node.mount(DRIVER, target, OPTIONS))


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_file_left_by_a_killed_mkfs_is_replaced(node: Any, target: Path, directory: Path) -> None:
    (directory / ".data.img.new").write_bytes(b"half a filesystem")
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert not (directory / ".data.img.new").exists()


def test_start_removes_files_left_by_a_killed_mkfs(make_plugin: Any, directory: Path) -> None:
    directory.mkdir()
    (directory / ".data.img.new").write_bytes(b"half a filesystem")
    make_plugin()
    assert list(directory.iterdir()) == []


@pytest.mark.programs("debugfs", "e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_damage_that_fsck_can_mend_is_mended(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    (target / "x").write_text("kept")
    node.unmount(DRIVER, target)
    # Wrong free counts and a dirty mark are what a power cut leaves.
    run("debugfs", "-w", "-R", "ssv free_blocks_count 1", str(directory / "data.img"))
    run("debugfs", "-w", "-R", "ssv state 0", str(directory / "data.img"))
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert (target / "x").read_text() == "kept"


@pytest.mark.programs("debugfs", "e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_damage_that_needs_a_person_is_a_clear_failure(node: Any, target: Path, directory: Path, loops: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    (target / "folder").mkdir()
    node.unmount(DRIVER, target)
    run("debugfs", "-w", "-R", "clri /", str(directory / "data.img"))
    run("debugfs", "-w", "-R", "ssv state 2", str(directory / "data.img"))
    answer = node.mount(DRIVER, target, OPTIONS)
    assert answer["status"] == "Failure"
    assert "e2fsck cannot repair it" in answer["message"]
    assert (node.mounted, loops()) == ([], {})


@pytest.mark.parametrize("name", ["", "..", "../etc", "a/b", ".hidden", "/etc/passwd", "a\nb", "-x", "x" * 129, "ä"])
def test_a_name_that_is_no_plain_name_is_refused(node: Any, target: Path, name: str, directory: Path) -> None:
    answer = node.mount(DRIVER, target, OPTIONS | {"name": name})
    assert answer["status"] == "Failure"
    assert "option name" in answer["message"]
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("size", ["64MB", "-1", "", "1", "9e18Ki", "99Ei"])
def test_a_size_that_is_no_size_is_refused(node: Any, target: Path, size: str, directory: Path) -> None:
    assert node.mount(DRIVER, target, OPTIONS | {"size": size})["status"] == "Failure"
    assert list(directory.iterdir()) == []


def test_an_unknown_option_is_refused_by_name(node: Any, target: Path) -> None:
    assert "no option 'capacity'" in node.mount(DRIVER, target, {"name": "data", "capacity": "1Gi"})["message"]


def test_a_size_over_the_nodes_limit_is_refused(make_node: Any, make_plugin: Any) -> None:
    node = make_node(loopfile=make_plugin(max_size="32Mi"))
    answer = node.mount(DRIVER, node.target("a"), OPTIONS | {"size": "33Mi"})
    assert "33Mi; this node allows at most 32Mi" in answer["message"]


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


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_tool_of_a_killed_daemon_keeps_its_image_from_being_mounted(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    with filesystem.locked(directory / "data.img"):
        answer = node.mount(DRIVER, target, OPTIONS)
    assert "for an earlier call" in answer["message"]
    assert succeeded(node.mount(DRIVER, target, OPTIONS))


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_busy_volume_is_kept_and_unmounted_later(node: Any, target: Path, loops: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    with (target / "x").open("w"):
        assert "in use" in node.unmount(DRIVER, target)["message"]
    assert succeeded(node.unmount(DRIVER, target))
    assert loops() == {}


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_stats_tell_the_size_of_the_volume(node: Any, target: Path, make_plugin: Any) -> None:
    node.mount(DRIVER, target, OPTIONS)
    request = VolumeStatsRequest(driver=DRIVER, volume_id=VolumeId("data"), mount_path=str(target))
    stats = make_plugin().volume_stats(request)
    assert 8 * MIB < stats.total < 16 * MIB
    assert stats.used + stats.available <= stats.total


def test_the_volume_id_does_not_depend_on_the_size(make_plugin: Any) -> None:
    plugin = make_plugin()
    small, large = (VolumeIdentify(driver=DRIVER, options={"name": "data", "size": size}) for size in ("1Gi", "2Gi"))
    assert plugin.volume_id(small) == plugin.volume_id(large)


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


@needs_loop_devices
def test_a_missing_tool_is_named(node: Any, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_volumes.filesystem._ENVIRONMENT", {"PATH": "/nonexistent"})
    assert "mkfs.ext4 is not installed" in node.mount(DRIVER, target, OPTIONS)["message"]


def test_options_are_checked_before_anything_is_made(make_plugin: Any) -> None:
    with pytest.raises(InvalidRequest):
        make_plugin().volume_id(VolumeIdentify(driver=DRIVER, options={"name": "../x"}))


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


@pytest.mark.programs("e2fsck", "mkfs.ext4")
@needs_loop_devices
def test_a_volume_that_was_provisioned_is_never_made_anew(make_plugin: Any, directory: Path, area: Path) -> None:
    """On another node an empty volume would take its place, and nobody would notice."""
    plugin, staging = make_plugin(), area / "staging"
    staging.mkdir()
    request = VolumeStage(driver=DRIVER, volume_id=VolumeId("data"), options=OPTIONS, staging_path=str(staging))
    with pytest.raises(NotFound, match=r"has no image .*; it may be on another node"):
        plugin.volume_stage(replace(request, must_exist=True))
    assert list(directory.iterdir()) == []
    plugin.volume_stage(request)
    unmount(str(staging))
    plugin.volume_stage(replace(request, must_exist=True))
    assert mounted_at(str(staging)) is not None
