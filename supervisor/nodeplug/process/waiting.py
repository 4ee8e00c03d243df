"""Waiting for whichever comes first.

Owns: the one form of it that the daemon needs, without a task left behind.
Refuses: to cancel what it waits for.
"""

import asyncio
from typing import Any


async def until(work: "asyncio.Future[Any]", event: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until the work is done, the event is set, or `seconds` have passed."""
    happening = asyncio.ensure_future(event.wait())
    try:
        await asyncio.wait({work, happening}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        happening.cancel()
