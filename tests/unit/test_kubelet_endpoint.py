"""A call of the stand-in whose plugin goes away under it ends as kubelet's does."""

import asyncio
from pathlib import Path

import pytest

from nodeplug.testing import AdmissionError
from nodeplug.testing.kubelet.endpoint import Endpoint, as_rejection


async def _call(waiting: asyncio.Event, answer: "asyncio.Future[None]") -> None:
    async with as_rejection("Allocate failed due to "):
        waiting.set()
        await answer


def test_a_call_whose_connection_is_closed_under_it_is_rejected_in_the_words_of_grpc() -> None:
    async def story() -> None:
        answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answer.cancel()  # what grpc.aio does to the calls of a channel that is closed
        await _call(asyncio.Event(), answer)

    with pytest.raises(AdmissionError, match="Canceled desc = grpc: the client connection is closing"):
        asyncio.run(story())


def test_a_caller_who_is_cancelled_stays_cancelled() -> None:
    async def story() -> None:
        waiting = asyncio.Event()
        task = asyncio.create_task(_call(waiting, asyncio.get_running_loop().create_future()))
        await waiting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(story())


def test_who_closes_a_connection_and_is_cancelled_meanwhile_stays_cancelled(tmp_path: Path) -> None:
    async def story() -> None:
        endpoint = Endpoint("example.com/a", tmp_path / "a.sock", lambda *_: None, lambda *_: None)
        endpoint.listen()
        closing = asyncio.create_task(endpoint.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing

    asyncio.run(story())
