"""Deferred DELs whose folder is looked at by several at once."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nodeplug.cni import spool_folder
from nodeplug.cni.attachments import Key
from nodeplug.cni.spool import Spool
from nodeplug.exec.frame import Frame, Reply

DEL = Frame(
    "cni",
    "/opt/cni/bin/test",
    env={"CNI_COMMAND": "DEL", "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/opt/cni/bin"},
    stdin=b'{"cniVersion": "1.0.0", "name": "net", "type": "test"}',
)


def test_a_look_that_began_before_a_del_was_known_does_not_replay_it_again(tmp_path: Path) -> None:
    spool = Spool(tmp_path)
    (tmp_path / "1.frame").write_bytes(DEL.encode())
    served = []

    async def serve(frame: Frame) -> Reply:
        served.append(frame)
        return Reply()

    async def story() -> None:
        await asyncio.gather(*(spool.replay(serve) for _ in range(3)))

    asyncio.run(story())
    assert served == [DEL]
    assert list(tmp_path.iterdir()) == []


class Watched:
    """A spool whose folder is watched, with what it replayed and how often it was read."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.spool = Spool(folder, poll=3600)
        self.served: list[Frame] = []
        self.reads = 0
        real = spool_folder.look

        def look(*arguments: object) -> object:
            self.reads += 1
            return real(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(spool_folder, "look", look)

    async def serve(self, frame: Frame) -> Reply:
        self.served.append(frame)
        return Reply()

    async def settle(self) -> None:
        await self.spool.settle(Key("test", "net", "c1", "eth0"), self.serve)

    def spooled(self, name: str) -> None:
        written = self.folder / f"{name}.tmp"
        written.write_bytes(DEL.encode())
        written.rename(written.with_suffix(".frame"))

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def whole() -> None:
            running = asyncio.create_task(self.spool.run(self.serve))
            while not self.reads:
                await asyncio.sleep(0.001)
            await self.spool.look()
            self.reads = 0
            await story()
            running.cancel()
            await asyncio.wait([running])

        asyncio.run(whole())


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Watched:
    folder = tmp_path / "spool"
    folder.mkdir()
    return Watched(folder, monkeypatch)


def test_before_an_add_a_folder_in_which_nothing_has_changed_is_not_read(watched: Watched) -> None:
    async def story() -> None:
        for _ in range(3):
            await watched.settle()

    watched.run(story)
    assert watched.reads == 0


def test_a_del_that_was_kept_a_moment_before_an_add_is_replayed_first(watched: Watched) -> None:
    async def story() -> None:
        for number in range(3):
            watched.spooled(str(number))
            await watched.settle()

    watched.run(story)
    assert watched.served == [DEL] * 3


def test_a_del_in_a_folder_that_was_made_anew_is_replayed_first(watched: Watched) -> None:
    async def story() -> None:
        for number in range(2):
            watched.folder.rmdir()
            await watched.settle()
            watched.folder.mkdir()
            watched.spooled(str(number))
            await watched.settle()

    watched.run(story)
    assert watched.served == [DEL] * 2


def test_a_del_that_comes_while_the_folder_is_read_is_replayed_before_the_next_add(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = spool_folder.look

    def late(*arguments: object) -> object:
        sight = real(*arguments)  # type: ignore[arg-type]
        if not list(watched.folder.iterdir()):
            watched.spooled("late")
        return sight

    async def story() -> None:
        monkeypatch.setattr(spool_folder, "look", late)
        await watched.spool.look()
        monkeypatch.setattr(spool_folder, "look", real)
        await watched.settle()

    watched.run(story)
    assert watched.served == [DEL]


def test_without_inotify_the_folder_is_read_before_each_add(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("nodeplug.cni.spool_watch.Inotify", refuse)

    async def story() -> None:
        await watched.settle()
        watched.spooled("1")
        await watched.settle()

    watched.run(story)
    assert (watched.reads >= 2, watched.served) == (True, [DEL])
