"""Waiting for whichever comes first, and for the next turn.

Owns: the forms of it that the daemon needs, without a task left behind.
Refuses: to cancel what it waits for.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

LOG: Final = logging.getLogger(__name__)


async def until(work: "asyncio.Future[Any]", event: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until the work is done, the event is set, or `seconds` have passed."""
    happening = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({work, happening}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        happening.cancel()


async def every(seconds: float, step: Callable[[], Awaitable[object]]) -> None:
    """Repeat a step until cancelled; one that fails is no reason to end every other task of the node."""
    while True:
        await asyncio.sleep(seconds)
        try:
            await step()
        except Exception:
            LOG.exception("a step of the daemon failed; it is tried again")
