"""FUSE programs for tests: what they serve, and those that run on this machine."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.programs import need

from nodeplug_volumes.fuse.room import Room
from nodeplug_volumes.fuse.server import strays


@contextmanager
def shared_folder() -> Iterator[Path]:
    """Give a folder for bindfs that every user may write to; not below /tmp: a program has a /tmp of its own."""
    need("bindfs")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))
    folder.chmod(0o777)
    (folder / "hello").write_text("world")
    yield folder
    shutil.rmtree(folder)


def programs(source: Path) -> list[int]:
    """Return the processes of bindfs that serve a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"bindfs" and os.fsencode(source) in words:
            found.append(int(path.parts[2]))
    return found


def end_strays(hosts: Path) -> None:
    """Kill the programs that the stopped plugins below a folder have left, and collect the status of this process's."""
    for folder in hosts.glob("*/volumes/*/"):
        record = Room(folder).read()
        for pid in strays(Room(folder), record.user) if record is not None else []:
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
