"""loopfile with tools that take longer than a call: they go on behind it, and the same call again finds them."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from nodeplug import (
    AlreadyExists,
    PluginError,
    TryAgain,
    VolumeCreate,
    VolumeDelete,
    VolumeExpand,
    VolumeId,
    VolumeStage,
    VolumeUnstage,
    unmount,
)
from nodeplug.testing.waiting import until
from nodeplug_volumes import background, filesystem
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig
from nodeplug_volumes.marker import MARKER

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]
DRIVER = "nodeplug/loopfile"
MIB = 1 << 20
PATIENCE = 30.0
ONE = VolumeId("one")
SLOW = """#!/bin/sh
echo $$ >> {folder}/{name}.pids
while [ -e {folder}/wait ]; do sleep 0.05; done
exec {real} "$@"
"""


@dataclass
class Tools:
    """The real tools, which begin when they may."""

    folder: Path

    def hold(self) -> None:
        (self.folder / "wait").touch()

    def release(self) -> None:
        (self.folder / "wait").unlink(missing_ok=True)

    def pids(self, name: str) -> list[int]:
        with suppress(FileNotFoundError):
            return [int(pid) for pid in (self.folder / f"{name}.pids").read_text().split()]
        return []


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Tools]:
    folder = tmp_path / "tools"
    folder.mkdir()
    path = filesystem._ENVIRONMENT["PATH"]
    for name in ("e2fsck", "mkfs.ext4", "resize2fs", "xfs_growfs"):
        (folder / name).write_text(SLOW.format(folder=folder, name=name, real=shutil.which(name, path=path)))
        (folder / name).chmod(0o755)
    monkeypatch.setattr(filesystem, "_ENVIRONMENT", MappingProxyType({"PATH": f"{folder}:{path}", "LC_ALL": "C"}))
    monkeypatch.setattr(background, "PATIENCE", 1.0)
    monkeypatch.setattr(filesystem, "_LOOK_EVERY", 0.05)
    made = Tools(folder)
    yield made
    for pid in [pid for name in ("e2fsck", "mkfs.ext4", "resize2fs", "xfs_growfs") for pid in made.pids(name)]:
        with suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    made.release()


@pytest.fixture
def start(area: Path, make_host: Any) -> Iterator[Callable[..., LoopFile]]:
    started = []

    def one(**config: Any) -> LoopFile:
        plugin = LoopFile(LoopFileConfig(directory=area / "images", **config), make_host("loopfile"))
        plugin.start()
        started.append(plugin)
        return plugin

    yield one
    for plugin in started:
        plugin.stop()


def create(plugin: LoopFile, size: int = 16 * MIB) -> None:
    plugin.volume_create(VolumeCreate(driver=DRIVER, name="one", size=size))


def stage(plugin: LoopFile, area: Path, **options: str) -> Path:
    path = area / "staged"
    path.mkdir(exist_ok=True)
    plugin.volume_stage(
        VolumeStage(driver=DRIVER, volume_id=ONE, options={"name": "one", **options}, staging_path=str(path))
    )
    return path


def files(area: Path) -> list[str]:
    return sorted(path.name for path in (area / "images").iterdir() if path.name != MARKER)


def repeated(call: Callable[[], object]) -> None:
    """Call as kubelet does, until it is done."""
    until_then = time.monotonic() + PATIENCE
    while True:
        try:
            call()
            return
        except TryAgain:
            assert time.monotonic() < until_then


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_check_that_takes_long_goes_on_behind_the_call_and_the_same_call_finds_it(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start()
    create(plugin)
    tools.hold()
    for _ in range(3):
        with pytest.raises(TryAgain, match=r"'one': checking it takes longer, e2fsck for \d+ s; it has"):
            stage(plugin, area)
    assert len(tools.pids("e2fsck")) == 1
    tools.release()
    repeated(lambda: stage(plugin, area))
    assert len(tools.pids("e2fsck")) == 1
    unmount(str(area / "staged"))


@pytest.mark.programs("e2fsck", "mkfs.ext4", "resize2fs")
def test_a_growth_that_takes_long_is_begun_once(tools: Tools, start: Callable[..., LoopFile], area: Path) -> None:
    plugin = start()
    create(plugin)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(background, "PATIENCE", PATIENCE)
        stage(plugin, area)
    unmount(str(area / "staged"))
    plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=ONE, staging_path=str(area / "staged")))
    before = len(tools.pids("resize2fs"))
    (tools.folder / "e2fsck").unlink()  # it is checked at once, and grows for long
    tools.hold()
    for _ in range(2):
        with pytest.raises(TryAgain, match="resize2fs for"):
            stage(plugin, area, size="32Mi")
    tools.release()
    repeated(lambda: stage(plugin, area, size="32Mi"))
    assert len(tools.pids("resize2fs")) <= before + 2  # it wants a full check first, and is begun again after that
    status = os.statvfs(area / "staged")
    assert status.f_blocks * status.f_frsize > 24 * MIB
    unmount(str(area / "staged"))


@pytest.mark.programs("mkfs.ext4")
def test_a_volume_whose_filesystem_takes_long_to_make_is_found_by_the_next_call_and_needs_its_room_once(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start(max_total=20 * MIB)
    tools.hold()
    for _ in range(3):
        with pytest.raises(TryAgain, match=r"'one': making it with 16Mi takes longer, mkfs\.ext4 for"):
            create(plugin)
    tools.release()
    repeated(lambda: create(plugin))
    assert len(tools.pids("mkfs.ext4")) == 1
    assert files(area) == ["one.img", "one.json"]


@pytest.mark.programs("mkfs.ext4")
def test_a_volume_that_is_being_made_with_a_filesystem_is_refused_as_a_block_device(
    tools: Tools, start: Callable[..., LoopFile]
) -> None:
    plugin = start()
    tools.hold()
    with pytest.raises(TryAgain):
        create(plugin)
    with pytest.raises(AlreadyExists, match="'one' is being made: a filesystem; now a block device is asked for"):
        plugin.volume_create(VolumeCreate(driver=DRIVER, name="one", size=16 * MIB, block=True))
    tools.release()
    repeated(lambda: create(plugin))


@pytest.mark.programs("mkfs.ext4")
def test_a_volume_that_is_being_made_with_one_filesystem_is_refused_with_another(
    tools: Tools, start: Callable[..., LoopFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    plugin = start()
    tools.hold()
    with pytest.raises(TryAgain):
        create(plugin, 512 * MIB)
    monkeypatch.setattr(background, "PATIENCE", PATIENCE)
    other = VolumeCreate(driver=DRIVER, name="one", size=512 * MIB, fs_type="xfs")
    with ThreadPoolExecutor() as others:
        waiting = others.submit(plugin.volume_create, other)  # it waits for what the first call has begun
        tools.release()
        with pytest.raises(AlreadyExists, match="'one' exists with ext4; xfs is asked for"):
            waiting.result()


def test_a_volume_that_nobody_wants_any_more_ends_the_tool_that_makes_it(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start()
    tools.hold()
    with pytest.raises(TryAgain):
        create(plugin)
    repeated(lambda: plugin.volume_delete(VolumeDelete(driver=DRIVER, volume_id=ONE)))
    (pid,) = tools.pids("mkfs.ext4")
    assert not Path(f"/proc/{pid}").exists()
    assert files(area) == []


@pytest.mark.programs("mkfs.ext4")
def test_a_plugin_that_ends_ends_its_tools_and_the_next_one_begins_anew(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start()
    tools.hold()
    with pytest.raises(TryAgain):
        create(plugin)
    plugin.stop()
    (pid,) = tools.pids("mkfs.ext4")
    assert not Path(f"/proc/{pid}").exists()
    tools.release()
    successor = start()
    repeated(lambda: create(successor))
    assert len(tools.pids("mkfs.ext4")) == 2
    assert files(area) == ["one.img", "one.json"]


@pytest.mark.programs("mkfs.ext4")
def test_how_a_long_check_failed_is_told_to_the_next_call(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start()
    create(plugin)
    (tools.folder / "e2fsck").write_text("#!/bin/sh\nsleep 1\necho 'it is beyond repair' >&2\nexit 4\n")
    with pytest.raises(TryAgain):
        stage(plugin, area)
    with pytest.raises(PluginError, match=r"damaged and e2fsck cannot repair it .*beyond repair"):
        repeated(lambda: stage(plugin, area))


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_the_log_tells_how_far_a_long_check_is(
    tools: Tools,
    start: Callable[..., LoopFile],
    area: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr(background, "TOLD_EVERY", 0.0)
    plugin = start()
    create(plugin)
    tools.hold()
    with pytest.raises(TryAgain):
        stage(plugin, area)
    until(lambda: "volume one: checking it goes on, e2fsck for" in caplog.text, PATIENCE)
    assert "it has read" in caplog.text


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_a_check_goes_on_when_the_plugin_ends_and_the_next_one_waits_for_it(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start()
    create(plugin)
    tools.hold()
    with pytest.raises(TryAgain):
        stage(plugin, area)
    plugin.stop()
    successor = start()
    with pytest.raises(TryAgain, match="is still being checked, grown or copied for an earlier call"):
        stage(successor, area)
    (pid,) = tools.pids("e2fsck")
    assert Path(f"/proc/{pid}").exists()
    tools.release()
    repeated(lambda: stage(successor, area))
    unmount(str(area / "staged"))


def test_a_tool_may_say_something_when_the_daemon_that_began_it_is_gone(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text(f"#!/bin/sh\nsleep 1\nkill -9 $PPID\nsleep 1\necho done\ntouch {tmp_path}/ended\n")
    (tmp_path / "tool").chmod(0o755)
    program = f"from nodeplug_volumes import filesystem; filesystem.run(['{tmp_path}/tool'])"
    killed = subprocess.run([sys.executable, "-c", program], check=False)
    assert killed.returncode == -signal.SIGKILL
    until((tmp_path / "ended").exists, PATIENCE)


@pytest.mark.programs("mkfs.ext4")
def test_a_deletion_ends_the_check_of_its_volume(tools: Tools, start: Callable[..., LoopFile], area: Path) -> None:
    plugin = start()
    create(plugin)
    tools.hold()
    with pytest.raises(TryAgain):
        stage(plugin, area)
    repeated(lambda: plugin.volume_delete(VolumeDelete(driver=DRIVER, volume_id=ONE)))
    (pid,) = tools.pids("e2fsck")
    assert not Path(f"/proc/{pid}").exists()
    assert files(area) == []


@pytest.mark.programs("mkfs.xfs", "xfs_growfs")
def test_a_second_growth_is_not_taken_for_the_first_one_whose_end_nobody_heard(
    tools: Tools, start: Callable[..., LoopFile], area: Path
) -> None:
    plugin = start(fs_type="xfs")
    repeated(lambda: create(plugin, 320 * MIB))
    repeated(lambda: stage(plugin, area))
    path = area / "staged"
    tools.hold()

    def grow(size: int) -> None:
        options = {"name": "one"}
        plugin.volume_expand(
            VolumeExpand(driver=DRIVER, volume_id=ONE, options=options, new_size=size, mount_path=str(path))
        )

    with pytest.raises(TryAgain):
        grow(384 * MIB)
    tools.release()
    first = os.statvfs(path).f_blocks
    until(lambda: os.statvfs(path).f_blocks > first, PATIENCE)
    until(lambda: not plugin._store.background.runs(area / "images" / "one.img"), PATIENCE)
    repeated(lambda: grow(448 * MIB))
    status = os.statvfs(path)
    assert (status.f_blocks - first) * status.f_frsize > 100 * MIB
    unmount(str(path))
