"""loopfile with the real xfs tools, which a bare Debian machine does not have."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.programs import need

from nodeplug import (
    InvalidRequest,
    VolumeExpand,
    VolumeId,
    VolumeStage,
    VolumeUnstage,
    mounted_at,
    unmount,
)
from nodeplug.testing import host
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig

pytestmark = pytest.mark.real
DRIVER, VOLUME = "nodeplug/loopfile", VolumeId("data")
MIB = 1 << 20


@pytest.fixture(autouse=True)
def xfsprogs() -> None:
    need("mkfs.xfs")


@pytest.fixture
def plugin(tmp_path: Path) -> LoopFile:
    made = LoopFile(LoopFileConfig(directory=tmp_path / "images"), host(tmp_path, plugin="loopfile"))
    made.start()
    return made


@pytest.fixture
def staging(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path.resolve() / "staging"
    path.mkdir()
    yield path
    unmount(str(path), lazy=True)


def stage(plugin: LoopFile, staging: Path, size: str = "320Mi", fs_type: str = "xfs") -> None:
    options = {"name": "data", "size": size, "fsType": fs_type}
    plugin.volume_stage(VolumeStage(driver=DRIVER, volume_id=VOLUME, options=options, staging_path=str(staging)))


def size_of(path: Path) -> int:
    status = os.statvfs(path)
    return status.f_blocks * status.f_frsize


def test_xfs_is_made_when_it_is_asked_for(plugin: LoopFile, staging: Path) -> None:
    stage(plugin, staging)
    found = mounted_at(str(staging))
    assert found is not None
    assert found.fs_type == "xfs"


def test_xfs_grows_at_the_next_stage_and_keeps_the_data(plugin: LoopFile, staging: Path) -> None:
    stage(plugin, staging)
    (staging / "x").write_text("kept")
    plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VOLUME, staging_path=str(staging)))
    stage(plugin, staging, "448Mi")
    assert size_of(staging) > 340 * MIB
    assert (staging / "x").read_text() == "kept"


def test_a_mounted_xfs_grows(plugin: LoopFile, staging: Path) -> None:
    stage(plugin, staging)
    options = {"name": "data"}
    plugin.volume_expand(
        VolumeExpand(driver=DRIVER, volume_id=VOLUME, options=options, mount_path=str(staging), new_size=448 * MIB)
    )
    assert size_of(staging) > 340 * MIB


def test_a_size_that_xfs_cannot_have_is_told_in_its_own_words(plugin: LoopFile, staging: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"16Mi in .*larger than"):
        stage(plugin, staging, "16Mi")
    assert list((tmp_path / "images").iterdir()) == []


def test_ext4_is_refused_where_the_image_holds_xfs(plugin: LoopFile, staging: Path) -> None:
    stage(plugin, staging)
    plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VOLUME, staging_path=str(staging)))
    with pytest.raises(InvalidRequest, match="holds xfs already"):
        stage(plugin, staging, fs_type="ext4")
