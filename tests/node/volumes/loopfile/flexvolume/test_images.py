"""Images of loopfile through the FlexVolume front: made, mounted, checked and mended."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.images import DRIVER, MIB
from tests.node.volumes.loopfile.flexvolume.calls import OPTIONS, run, succeeded

from nodeplug import (
    NotFound,
    VolumeId,
    VolumeStage,
    mounted_at,
    unmount,
)
from nodeplug_volumes import filesystem

pytestmark = pytest.mark.node
needs_loop_devices = pytest.mark.usefixtures("has_loop_devices")


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
def test_the_image_is_readable_by_root_alone_and_sparse(node: Any, target: Path, directory: Path) -> None:
    node.mount(DRIVER, target, OPTIONS | {"size": "512Mi"})
    status = (directory / "data.img").stat()
    assert status.st_mode & 0o777 == 0o600
    assert (status.st_size, status.st_blocks * 512 < 64 * MIB) == (512 * MIB, True)


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


@needs_loop_devices
def test_a_missing_tool_is_named(node: Any, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_volumes.filesystem._ENVIRONMENT", {"PATH": "/nonexistent"})
    assert "mkfs.ext4 is not installed" in node.mount(DRIVER, target, OPTIONS)["message"]


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
