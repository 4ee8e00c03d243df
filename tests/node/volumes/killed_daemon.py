"""A volume side that is killed before its n-th change of the world: run by test_volumes_killed.py as a module.

Arguments: n, area, then the argv of the driver. Every rename, unlink, mkdir, rmdir, truncate, ioctl, tool, mount and
unmount below the area counts as one change. Without a kill the verb succeeds and the exit status is 0.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from nodeplug.contract.journal import Journal
from nodeplug.exec.frame import Frame
from nodeplug.flex.service import FlexService
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.testing import host
from nodeplug.volumes.service import Volumes
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig

EVENTS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "fcntl.ioctl", "subprocess.Popen"}
PATH = "/exec/nodeplug~loopfile/loopfile"


class Changes:
    def __init__(self, fatal: int) -> None:
        self.left = fatal

    def count(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
            signal.pause()

    def audit(self, event: str, _: Any) -> None:
        if event in EVENTS:
            self.count()


class Libc:
    """libc whose mount and umount2 count as changes."""

    def __init__(self, real: Any, changes: Changes) -> None:
        self._real, self._changes = real, changes

    def mount(self, *arguments: Any) -> Any:
        self._changes.count()
        return self._real.mount(*arguments)

    def umount2(self, *arguments: Any) -> Any:
        self._changes.count()
        return self._real.umount2(*arguments)


def count_mounts(changes: Changes) -> None:
    """Let mounts and unmounts of nodeplug count as changes."""
    names = vars(sys.modules["nodeplug.contract.mounts"])
    names["_LIBC"] = Libc(names["_LIBC"], changes)


def service(area: Path) -> FlexService:
    (area / "host").mkdir(exist_ok=True)
    plugin = LoopFile(LoopFileConfig(directory=area / "images"), host(area / "host"))
    plugin.start()
    registry, runner = Registry(), Runner()
    registry.load("loopfile", plugin, "tests")
    return FlexService(registry, runner, Volumes(runner, Journal(area / "journal"), area / "staging"))


def main(fatal: int, area: Path, argv: tuple[str, ...]) -> None:
    async def once() -> bytes:
        front = service(area)
        changes = Changes(fatal)
        sys.addaudithook(changes.audit)
        count_mounts(changes)
        return (await front.handle(Frame("flex", PATH, argv), ())).stdout

    answer = json.loads(asyncio.run(once()))
    assert answer == {"status": "Success"}, answer


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), tuple(sys.argv[3:]))
