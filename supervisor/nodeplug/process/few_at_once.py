"""Limits how many pieces of work run at a time, so that threads do not starve the event loop.

Owns: how many are under way, and that a slow one gives up its place.
Refuses: deadlines and cancelling: a piece that is slow goes on.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

_T = TypeVar("_T")


class FewAtOnce:
    """Places for pieces of work. Event loop only.

    Args:
        places: how many are done at a time.
        patience: seconds after which a piece that is not done leaves its place to the next one.
    """

    def __init__(self, places: int, patience: float) -> None:
        self._places: Final = asyncio.Semaphore(places)
        self._patience = patience

    async def begun(self, work: Callable[[], Coroutine[Any, Any, _T]], name: str) -> "asyncio.Task[_T]":
        """Start a piece of work when there is a place; return its task once it is done or its patience is over."""
        async with self._places:
            task = asyncio.create_task(work(), name=name)
            await asyncio.wait({task}, timeout=self._patience)
        return task

    @asynccontextmanager
    async def place(self) -> AsyncIterator[None]:
        """Wait for a place and hold it for the `with` block, but no longer than the patience."""
        await self._places.acquire()
        held = True

        def leave() -> None:
            nonlocal held
            if held:
                held = False
                self._places.release()

        ending = asyncio.get_running_loop().call_later(self._patience, leave)
        try:
            yield
        finally:
            ending.cancel()
            leave()
