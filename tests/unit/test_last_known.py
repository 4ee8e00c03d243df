"""The records of what kubelet was last told: when they are written, and that none is ever half."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from nodeplug import Device, DeviceId, ResourceName
from nodeplug.device.codec import encode_list
from nodeplug.device.last_known import LastKnown, Remembered

THING = ResourceName("example.com/thing")
BOOT = "b0"
pytestmark = pytest.mark.unprivileged


def known(*names: str, plugin: str = "thing", hooks: frozenset[str] = frozenset()) -> Remembered:
    devices = [Device(DeviceId(name), numa_nodes=(1,)) for name in names]
    return Remembered.of(THING, plugin, hooks, encode_list(THING, devices))


def run(story: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(60):
            await story()

    asyncio.run(bounded())


def recalled(folder: Path) -> list[tuple[str, frozenset[str], list[str]]]:
    found = asyncio.run(LastKnown(folder, BOOT).recall())
    return [(one.plugin, one.hooks, sorted(one.devices())) for one in found]


def files(folder: Path) -> dict[str, int]:
    """Return the inode of each file."""
    return {path.name: path.stat().st_ino for path in folder.iterdir()}


def test_what_was_noted_is_recalled(tmp_path: Path) -> None:
    async def story() -> None:
        records = LastKnown(tmp_path / "devices", BOOT)
        records.note(known("a", "b", hooks=frozenset({"device_prefer", "device_list"})))
        await records.settle()

    run(story)
    assert recalled(tmp_path / "devices") == [("thing", frozenset({"device_prefer"}), ["a", "b"])]


def test_a_recalled_device_has_the_health_and_the_nodes_that_kubelet_knew(tmp_path: Path) -> None:
    async def story() -> None:
        records = LastKnown(tmp_path, BOOT)
        devices = [Device(DeviceId("a"), numa_nodes=(0, 1)), Device(DeviceId("b"), healthy=False, reason="smoke")]
        records.note(Remembered.of(THING, "thing", frozenset(), encode_list(THING, devices)))
        await records.settle()
        (one,) = await LastKnown(tmp_path, BOOT).recall()
        found = one.devices()
        assert found[DeviceId("a")] == Device(DeviceId("a"), numa_nodes=(0, 1))
        assert not found[DeviceId("b")].healthy

    run(story)


def test_only_a_change_is_written_and_of_many_at_once_the_latest(tmp_path: Path) -> None:
    async def story() -> None:
        records = LastKnown(tmp_path, BOOT)
        for number in range(100):
            records.note(known(f"d{number}"))
        await records.settle()
        written = files(tmp_path)
        records.note(known("d99"))
        await records.settle()
        assert files(tmp_path) == written
        again = LastKnown(tmp_path, BOOT)
        await again.recall()
        again.note(known("d99"))
        await again.settle()
        assert files(tmp_path) == written
        again.note(known("d99", plugin="other"))
        await again.settle()
        assert files(tmp_path) != written

    run(story)
    assert recalled(tmp_path) == [("other", frozenset(), ["d99"])]


def test_what_is_forgotten_is_gone_even_if_it_was_noted_just_before(tmp_path: Path) -> None:
    async def story() -> None:
        records = LastKnown(tmp_path, BOOT)
        records.note(known("a"))
        records.forget(THING)
        await records.settle()
        assert not files(tmp_path)
        records.note(known("a"))
        await records.settle()
        records.forget(THING)
        await records.settle()
        assert not files(tmp_path)

    run(story)


def test_a_list_that_cannot_be_written_leaves_no_older_one_and_is_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "devices"

    async def story() -> None:
        records = LastKnown(folder, BOOT)
        folder.touch()
        records.note(known("a"))
        await records.settle()
        records.note(known("b"))
        await records.settle()
        assert caplog.text.count("cannot be kept") == 1
        folder.unlink()
        records.note(known("b"))
        await records.settle()

    run(story)
    assert recalled(folder) == [("thing", frozenset(), ["b"])]


_WRITER = """
import asyncio, os, sys
from pathlib import Path
from tests.unit.test_last_known import BOOT, known
from nodeplug.device.last_known import LastKnown

async def write():
    records = LastKnown(Path(sys.argv[1]), BOOT)
    lists = [known(*(f"{letter}{number}" for number in range(500))) for letter in "ab"]
    print(os.getpid(), flush=True)
    while True:
        for one in lists:
            records.note(one)
            await records.settle()

for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        asyncio.run(write())
    os.waitpid(child, 0)
    print("ended", flush=True)
"""
"""Forks for each line of its stdin a process that writes until it is killed."""


def test_a_daemon_that_is_killed_at_any_time_leaves_a_whole_record(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    random, root = Random(7), Path(__file__).parents[2]
    command, env = [sys.executable, "-c", _WRITER, str(tmp_path)], {**os.environ, "PYTHONPATH": str(root)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        for _ in range(12):
            writer.stdin.write("\n")
            writer.stdin.flush()
            child = int(writer.stdout.readline())
            time.sleep(random.uniform(0.0, 0.05))
            os.kill(child, signal.SIGKILL)
            assert writer.stdout.readline() == "ended\n"
            for _, _, names in recalled(tmp_path):
                assert len(names) == 500
                assert len({name[0] for name in names}) == 1
            assert not [path for path in tmp_path.iterdir() if path.suffix != ".json"]
    assert "not used" not in caplog.text
