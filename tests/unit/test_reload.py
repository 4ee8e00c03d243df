"""Reloading: off the loop, within its time, once per change, and never the end of the daemon."""

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from nodeplug import Host
from nodeplug.config import Reading, read
from nodeplug.config.watch import watch
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.reload import Reloader
from nodeplug.hosting.runner import Runner
from nodeplug.testing import host


@dataclass
class Daemon:
    """As much of a daemon as a reload needs, without plugins."""

    path: Path
    patience: float = 10.0
    counted: list[str] = field(default_factory=list)
    reading_again: Callable[[Reading], Reading] | None = None

    def __post_init__(self) -> None:
        self.path.write_text("version = 1\n")
        self.reloader = Reloader(
            read(self.path),
            read=self._read,
            lifecycle=Lifecycle(Registry(), Runner(), self._host),
            install=self._install,
            count=self.counted.append,
            patience=self.patience,
        )

    def read(self, before: Reading) -> Reading:
        return read(self.path, None, before)

    def _read(self, before: Reading) -> Reading:
        return (self.reading_again or self.read)(before)

    def _host(self, name: str) -> Host:
        return host(self.path.parent, plugin=name)

    async def _install(self) -> None: ...

    async def count(self, number: int) -> None:
        while len(self.counted) < number:
            await asyncio.sleep(0.01)

    def run(self, scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            running = asyncio.create_task(self.reloader.run())
            async with asyncio.timeout(30):
                await scenario()
            assert not running.done()
            running.cancel()

        asyncio.run(main())


def test_reading_that_hangs_is_told_and_goes_on_when_it_can(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "n.toml", patience=0.1)
    thawed = threading.Event()

    def frozen(before: Reading) -> Reading:
        thawed.wait(30)
        return daemon.read(before)

    async def scenario() -> None:
        daemon.reading_again = frozen
        daemon.path.write_text("version = 1\n# new\n")
        daemon.reloader.notice()
        await daemon.count(1)
        assert daemon.reloader.error == "reading its files takes longer than 0.1 s; it goes on when they can be read"
        thawed.set()
        await daemon.count(2)
        assert daemon.reloader.error == ""

    daemon.run(scenario)
    assert daemon.counted == ["refused", "applied"]


def test_the_loop_turns_while_the_files_are_read(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "n.toml")
    turned = threading.Event()
    loops: list[asyncio.AbstractEventLoop] = []

    def waits_for_the_loop(before: Reading) -> Reading:
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loops[0]).result(20)
        turned.set()
        return daemon.read(before)

    async def scenario() -> None:
        loops.append(asyncio.get_running_loop())
        daemon.reading_again = waits_for_the_loop
        daemon.reloader.ask()
        await daemon.count(1)

    daemon.run(scenario)
    assert turned.is_set()


@pytest.mark.parametrize("error", [RecursionError("deep"), ValueError("digits"), MemoryError(), OSError(5, "I/O")])
def test_nothing_that_reading_raises_ends_the_daemon(tmp_path: Path, error: Exception) -> None:
    daemon = Daemon(tmp_path / "n.toml")

    def broken(before: Reading) -> Reading:
        raise error

    async def scenario() -> None:
        daemon.reading_again = broken
        daemon.reloader.ask()
        await daemon.count(1)
        assert type(error).__name__ in daemon.reloader.error
        daemon.reading_again = None
        daemon.reloader.ask()
        await daemon.count(2)
        assert daemon.reloader.error == ""

    daemon.run(scenario)
    assert daemon.counted == ["refused", "applied"]


def test_two_events_of_one_change_are_one_reload(tmp_path: Path) -> None:
    daemon = Daemon(tmp_path / "n.toml")

    async def scenario() -> None:
        daemon.path.write_text("version = 2\n")
        daemon.reloader.notice()
        await daemon.count(1)
        daemon.reloader.notice()
        await asyncio.sleep(0.5)
        daemon.reloader.ask()  # somebody who asks gets an answer, also to the same files
        await daemon.count(2)

    daemon.run(scenario)
    assert daemon.counted == ["refused", "refused"]


def test_systemd_is_told_of_the_end_of_a_refused_reload_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(tmp_path / "n.toml")
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("notify")
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))

        async def scenario() -> None:
            daemon.path.write_text("version = 2\n")
            daemon.reloader.ask()
            await daemon.count(1)

        daemon.run(scenario)
        systemd.setblocking(False)
        assert systemd.recv(4096).startswith(b"RELOADING=1")
        assert systemd.recv(4096).startswith(b"READY=1")


def test_watching_outlives_folders_that_come_and_go(tmp_path: Path) -> None:
    path, folder = tmp_path / "n.toml", tmp_path / "plugins.d"
    changes: list[int] = []

    async def seen(number: int) -> None:
        while len(changes) < number:
            await asyncio.sleep(0.01)

    async def scenario() -> None:
        watching = asyncio.create_task(watch(path, folder, lambda: changes.append(1), 0.05))
        async with asyncio.timeout(30):
            await seen(1)
            steps: list[Callable[[], object]] = [
                folder.mkdir,
                (folder / "a.toml").touch,
                (folder / "a.toml").unlink,
                folder.rmdir,
                folder.touch,
                folder.unlink,
                path.mkdir,
            ]
            for change in steps:
                before = len(changes)
                change()
                await seen(before + 1)
        assert not watching.done()
        watching.cancel()

    asyncio.run(scenario())


def test_a_change_is_told_again_at_the_next_look(tmp_path: Path) -> None:
    """What was read after the first time may have been there for a moment alone, between two looks."""
    path, changes = tmp_path / "nodeplug.toml", list[int]()
    path.touch()

    async def scenario() -> None:
        watching = asyncio.create_task(watch(path, None, lambda: changes.append(1), 0.05))
        async with asyncio.timeout(10):
            while len(changes) < 2:
                await asyncio.sleep(0.01)
        watching.cancel()

    asyncio.run(scenario())
