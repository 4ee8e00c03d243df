"""What the tests of fuse ask a plugin, and do to its programs."""

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

from nodeplug import VolumeId, VolumeStats, VolumeStatsRequest
from nodeplug.testing.waiting import until
from nodeplug_volumes.fuse.plugin import Fuse

DRIVER = "nodeplug/fuse"
PATIENCE = 30
SECRET = "kubernetes.io/secret/"
SLAVE, PRIVATE = "19", "18"
"""Bits of mount(2): a container that asks for propagation, and one that does not."""


def volumes(plugin: Fuse) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = list(plugin.inspect()["volumes"])
    return found


def pid_of(plugin: Fuse) -> int:
    (volume,) = volumes(plugin)
    pid: int = volume["pid"]
    return pid


def condition_of(plugin: Fuse) -> str:
    (volume,) = volumes(plugin)
    text: str = volume["condition"]
    return text


def run_dir(plugin: Fuse) -> Path:
    return plugin._host.run_dir


def status_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


def ended(plugin: Fuse) -> int:
    """Kill the program, and wait until another one serves; return its pid."""
    former = pid_of(plugin)
    os.kill(former, signal.SIGKILL)
    until(lambda: pid_of(plugin) not in {0, former} and not condition_of(plugin), PATIENCE)
    return pid_of(plugin)


def seen(environment: Path) -> bytes:
    with suppress(OSError):
        return environment.read_bytes()
    return b""


def stats_of(plugin: Fuse) -> VolumeStats:
    (volume,) = volumes(plugin)
    return plugin.volume_stats(
        VolumeStatsRequest(driver=DRIVER, volume_id=VolumeId(volume["volume"]), mount_path="/anywhere")
    )
