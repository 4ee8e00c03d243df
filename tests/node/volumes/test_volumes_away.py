"""loopfile while the disk with its volumes is away: nothing is taken for gone, and everything waits for the disk."""

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk

from nodeplug import (
    Exhausted,
    NotFound,
    NotReady,
    VolumeCapacity,
    VolumeCreate,
    VolumeDelete,
    VolumeExpand,
    VolumeId,
    VolumePublish,
    VolumeSnapshot,
    VolumeSnapshotDelete,
    VolumeStage,
    VolumeUnstage,
)
from nodeplug_volumes import loopdev
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig
from nodeplug_volumes.marker import MARKER

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]
DRIVER = "nodeplug/loopfile"
MIB = 1 << 20
ONE = VolumeId("one")
AWAY = "the volumes of .* are away: .*; is its disk mounted"


@pytest.fixture
def make(make_host: Any) -> Callable[[Path], LoopFile]:
    """Start a plugin over a folder; again: a restart of the daemon."""

    def start(directory: Path) -> LoopFile:
        plugin = LoopFile(LoopFileConfig(directory=directory), make_host("loopfile"))
        plugin.start()
        return plugin

    return start


def create(plugin: LoopFile, name: str = "one") -> None:
    plugin.volume_create(VolumeCreate(driver=DRIVER, name=name, size=16 * MIB))


def names(plugin: LoopFile) -> list[str]:
    return [str(one.volume_id) for one in plugin.volume_list()]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with attached_disk(tmp_path / "disk", "ext4", "256M") as found:
        yield found


def detach(disk: Path) -> None:
    """Unmount a disk, and keep it mounted elsewhere."""
    subprocess.run(["mount", "--make-private", disk], check=True)
    Path(f"{disk}.elsewhere").mkdir(exist_ok=True)
    subprocess.run(["mount", "--bind", disk, f"{disk}.elsewhere"], check=True)
    subprocess.run(["umount", "--lazy", disk], check=True)  # a loop device may have a file open


def attach(disk: Path) -> None:
    subprocess.run(["mount", "--bind", f"{disk}.elsewhere", disk], check=True)
    subprocess.run(["umount", f"{disk}.elsewhere"], check=True)


@pytest.fixture
def away(disk: Path, make: Callable[[Path], LoopFile]) -> Iterator[LoopFile]:
    """A plugin with a volume and a snapshot on a disk that is not mounted."""
    plugin = make(disk)
    create(plugin)
    plugin.volume_snapshot(VolumeSnapshot(driver=DRIVER, volume_id=ONE, name="taken"))
    detach(disk)
    yield plugin
    attach(disk)
    assert names(plugin) == ["one"]
    assert [one.snapshot_id for one in plugin.volume_snapshot_list()] == ["taken"]


VERBS: dict[str, Callable[[LoopFile, str], object]] = {
    "delete": lambda plugin, _: plugin.volume_delete(VolumeDelete(driver=DRIVER, volume_id=ONE)),
    "list": lambda plugin, _: plugin.volume_list(),
    "expand": lambda plugin, _: plugin.volume_expand(
        VolumeExpand(driver=DRIVER, volume_id=ONE, options={"name": "one"}, new_size=32 * MIB)
    ),
    "stage": lambda plugin, folder: plugin.volume_stage(
        VolumeStage(driver=DRIVER, volume_id=ONE, options={"name": "one"}, staging_path=folder, must_exist=True)
    ),
    "stage of a new one": lambda plugin, folder: plugin.volume_stage(
        VolumeStage(driver=DRIVER, volume_id=ONE, options={"name": "one", "size": "16Mi"}, staging_path=folder)
    ),
    "publish": lambda plugin, folder: plugin.volume_publish(
        VolumePublish(driver=DRIVER, volume_id=ONE, options={"name": "one"}, staging_path=folder, target_path=folder)
    ),
    "capacity": lambda plugin, _: plugin.volume_capacity(VolumeCapacity(driver=DRIVER)),
    "snapshot": lambda plugin, _: plugin.volume_snapshot(VolumeSnapshot(driver=DRIVER, volume_id=ONE, name="more")),
    "snapshot's deletion": lambda plugin, _: plugin.volume_snapshot_delete(
        VolumeSnapshotDelete(driver=DRIVER, snapshot_id="taken")
    ),
    "list of snapshots": lambda plugin, _: plugin.volume_snapshot_list(),
    "health": lambda plugin, _: plugin.health(),
}


@pytest.mark.parametrize("verb", VERBS)
def test_while_the_disk_is_away_every_call_waits_for_it(verb: str, away: LoopFile, disk: Path, tmp_path: Path) -> None:
    with pytest.raises(NotReady, match=AWAY):
        VERBS[verb](away, str(tmp_path))
    assert list(disk.iterdir()) == []


def test_while_the_disk_is_away_a_new_volume_is_sent_to_another_node(away: LoopFile, disk: Path) -> None:
    with pytest.raises(Exhausted, match=AWAY):
        create(away, "two")
    assert list(disk.iterdir()) == []


def test_while_the_disk_is_away_a_volume_can_be_unstaged(away: LoopFile, tmp_path: Path) -> None:
    away.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=ONE, staging_path=str(tmp_path)))


def test_while_the_disk_is_away_no_figures_of_another_disk_are_told(away: LoopFile) -> None:
    assert away.metrics() == []


@pytest.mark.usefixtures("away")
def test_a_daemon_that_starts_while_the_disk_is_away_makes_nothing_and_waits(
    make: Callable[[Path], LoopFile], disk: Path
) -> None:
    with pytest.raises(NotReady, match=AWAY):
        make(disk).volume_delete(VolumeDelete(driver=DRIVER, volume_id=ONE))
    assert list(disk.iterdir()) == []


@pytest.fixture
def unmarked(
    disk: Path, make: Callable[[Path], LoopFile], make_host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[LoopFile]:
    """A plugin that starts while the disk is away on which an earlier version, which marked nothing, made a volume."""
    create(make(disk))
    (disk / MARKER).unlink()
    (make_host("loopfile").state_dir / "image-folders.json").unlink()
    (tmp_path / "fstab").write_text(f"UUID=0b0b {disk} ext4 nofail 0 2\n")
    monkeypatch.setenv("LIBMOUNT_FSTAB", str(tmp_path / "fstab"))
    detach(disk)
    plugin = make(disk)
    yield plugin
    attach(disk)
    assert names(plugin) == ["one"]
    assert (disk / MARKER).exists()


@pytest.mark.parametrize("verb", VERBS)
def test_after_an_upgrade_a_disk_of_fstab_that_is_not_mounted_is_waited_for(
    verb: str, unmarked: LoopFile, disk: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotReady, match=f"are away: fstab has a disk at {disk}, and nothing is mounted there"):
        VERBS[verb](unmarked, str(tmp_path))
    with pytest.raises(Exhausted, match=AWAY):
        create(unmarked, "two")
    assert list(disk.iterdir()) == []


def test_images_below_an_empty_mount_point_of_fstab_do_not_lock_its_disk_out(
    disk: Path, make: Callable[[Path], LoopFile], make_host: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create(make(disk), "of-the-disk")
    (disk / MARKER).unlink()
    note = make_host("loopfile").state_dir / "image-folders.json"
    note.unlink()
    (tmp_path / "fstab").write_text(f"UUID=0b0b {disk} ext4 nofail 0 2\n")
    detach(disk)
    try:
        create(make(disk), "below")  # an earlier version did not wait for the disk
        (disk / MARKER).unlink()
        note.unlink()
        monkeypatch.setenv("LIBMOUNT_FSTAB", str(tmp_path / "fstab"))
        with pytest.raises(NotReady, match="are away: fstab has a disk at"):
            names(make(disk))
        assert not (disk / MARKER).exists()
        assert not note.exists()
    finally:
        attach(disk)
    assert names(make(disk)) == ["of-the-disk"]


def test_what_was_begun_is_removed_when_the_disk_is_back_after_a_start(
    disk: Path, make: Callable[[Path], LoopFile]
) -> None:
    create(make(disk))
    (disk / ".two.img.new").touch()
    detach(disk)
    plugin = make(disk)
    attach(disk)
    assert names(plugin) == ["one"]
    assert not (disk / ".two.img.new").exists()


def test_a_folder_that_is_on_the_disk_is_not_made_below_the_mount_point(
    disk: Path, make: Callable[[Path], LoopFile]
) -> None:
    create(make(disk / "images"))
    detach(disk)
    with pytest.raises(NotReady, match=AWAY):
        names(make(disk / "images"))
    assert list(disk.iterdir()) == []
    attach(disk)


@pytest.mark.programs("mkfs.ext4")
def test_another_disk_in_its_place_is_refused(tmp_path: Path, make: Callable[[Path], LoopFile]) -> None:
    plugin = make(tmp_path / "images")
    create(plugin)
    (tmp_path / "images").rename(tmp_path / "former")
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / MARKER).write_text("somebody else's\n")
    with pytest.raises(NotReady, match="is not the one that is noted"):
        names(plugin)


@pytest.mark.programs("mkfs.ext4")
def test_volumes_that_an_earlier_version_made_are_marked_and_noted(
    tmp_path: Path, make: Callable[[Path], LoopFile], make_host: Any
) -> None:
    create(make(tmp_path))
    note = make_host("loopfile").state_dir / "image-folders.json"
    (tmp_path / MARKER).unlink()
    note.unlink()
    plugin = make(tmp_path)
    assert names(plugin) == ["one"]
    assert json.loads(note.read_text()) == {str(tmp_path): (tmp_path / MARKER).read_text().strip()}


def test_a_folder_without_volumes_has_no_marker(tmp_path: Path, make: Callable[[Path], LoopFile]) -> None:
    plugin = make(tmp_path)
    assert names(plugin) == []
    assert not (tmp_path / MARKER).exists()


def test_volumes_that_were_moved_to_another_disk_with_their_marker_are_served(
    tmp_path: Path, disk: Path, make: Callable[[Path], LoopFile]
) -> None:
    folder = tmp_path / "images"
    create(make(folder))
    subprocess.run(["cp", "-a", f"{folder}/.", disk], check=True)
    subprocess.run(["mount", "--bind", disk, folder], check=True)
    try:
        assert names(make(folder)) == ["one"]
    finally:
        subprocess.run(["umount", folder], check=True)
    assert names(make(disk)) == ["one"]


@pytest.mark.programs("mkfs.ext4")
def test_an_administrator_starts_anew_by_removing_the_note(
    tmp_path: Path, make: Callable[[Path], LoopFile], make_host: Any
) -> None:
    folder = tmp_path / "images"
    plugin = make(folder)
    create(plugin)
    subprocess.run(["rm", "-r", folder], check=True)
    folder.mkdir()
    with pytest.raises(NotReady, match=r"remove .*image-folders\.json"):
        names(plugin)
    (make_host("loopfile").state_dir / "image-folders.json").unlink()
    assert names(plugin) == []
    with pytest.raises(NotFound):
        VERBS["expand"](plugin, "")
    create(plugin)
    assert names(plugin) == ["one"]


@pytest.mark.programs("mkfs.ext4")
def test_a_note_that_is_damaged_is_no_reason_to_take_volumes_for_gone(
    tmp_path: Path, make: Callable[[Path], LoopFile], make_host: Any
) -> None:
    plugin = make(tmp_path)
    create(plugin)
    (make_host("loopfile").state_dir / "image-folders.json").write_text("{")
    with pytest.raises(NotReady, match=r"cannot read .*image-folders\.json"):
        VERBS["delete"](plugin, "")


def test_a_disk_whose_last_volume_is_removed_may_be_replaced_by_a_blank_one(
    disk: Path, make: Callable[[Path], LoopFile]
) -> None:
    plugin = make(disk)
    create(plugin)
    plugin.volume_snapshot(VolumeSnapshot(driver=DRIVER, volume_id=ONE, name="taken"))
    VERBS["delete"](plugin, "")
    assert (disk / MARKER).exists()  # it has a snapshot
    VERBS["snapshot's deletion"](plugin, "")
    assert not (disk / MARKER).exists()
    detach(disk)
    try:
        create(plugin)
        assert names(plugin) == ["one"]
        VERBS["delete"](plugin, "")
    finally:
        attach(disk)


def test_while_the_disk_is_away_a_block_volume_leaves_no_loop_device(
    disk: Path, make: Callable[[Path], LoopFile], tmp_path: Path
) -> None:
    plugin, path = make(disk), tmp_path / "staged"
    plugin.volume_create(VolumeCreate(driver=DRIVER, name="one", size=16 * MIB, block=True))
    path.touch()
    options = {"name": "one"}
    plugin.volume_stage(
        VolumeStage(driver=DRIVER, volume_id=ONE, options=options, staging_path=str(path), block=True, must_exist=True)
    )
    assert len(loopdev.find(disk / "one.img")) == 1
    detach(disk)
    try:
        plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=ONE, staging_path=str(path)))
        assert loopdev.find(Path(f"{disk}.elsewhere/one.img")) == []
    finally:
        attach(disk)
        loopdev.release_idle(disk / "one.img")
