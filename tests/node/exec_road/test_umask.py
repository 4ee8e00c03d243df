"""The exec socket is root's from its first instant, and nobody else's files notice that."""

import asyncio
import re
import threading
from pathlib import Path

import pytest

from nodeplug.exec.server import ExecServer

pytestmark = pytest.mark.unprivileged


@pytest.mark.parametrize("times", [100, pytest.param(1500, marks=pytest.mark.soak)])
def test_listening_anew_never_changes_the_umask_of_the_process(short_path: Path, times: int) -> None:
    path, over, seen = short_path / "exec.sock", threading.Event(), set[str]()

    def watch() -> None:
        while not over.is_set():
            seen.update(re.findall(r"^Umask:\s+(\d+)", Path("/proc/self/status").read_text(), re.MULTILINE))

    async def listen() -> None:
        for _ in range(times):
            server = ExecServer(path, {})
            await server.start()
            assert path.stat().st_mode & 0o777 == 0o600
            await server.stop(0)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        asyncio.run(listen())
    finally:
        over.set()
        watcher.join()
    assert len(seen) == 1
