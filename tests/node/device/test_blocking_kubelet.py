"""The kubelet stand-in for callers without asyncio ends with everything that ran on its loop."""

import asyncio
from pathlib import Path

from nodeplug.testing import BlockingKubelet


def test_what_still_runs_on_its_loop_ends_with_it(short_path: Path) -> None:
    ended: list[str] = []

    async def linger() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append("lingering")

    tasks: list[asyncio.Task[None]] = []

    async def begin() -> None:
        tasks.append(asyncio.create_task(linger()))
        await asyncio.sleep(0)

    with BlockingKubelet(short_path / "kubelet") as kubelet:
        kubelet.call(begin)
    assert ended == ["lingering"]
    assert tasks[0].cancelled()


def test_closing_it_twice_is_no_mistake(short_path: Path) -> None:
    kubelet = BlockingKubelet(short_path / "kubelet")
    kubelet.start()
    kubelet.close()
    kubelet.close()
