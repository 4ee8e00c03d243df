"""From a plugin's thread to the event loop, and back with an answer.

Owns: what becomes of it when the loop is closed, or busy for too long.
Refuses: to know what is asked.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import TimeoutError as Late
from contextlib import suppress
from typing import Any, TypeVar

from nodeplug.contract.errors import PluginError, TryAgain

_T = TypeVar("_T")


def tell(loop: asyncio.AbstractEventLoop, word: Callable[[], object]) -> None:
    """Have something called on the event loop, soon; nothing comes of it if the daemon is ending. Returns at once."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(word)


def ask(
    loop: asyncio.AbstractEventLoop,
    asking: Coroutine[Any, Any, _T],
    seconds: float,
    late: Callable[[str], PluginError] = TryAgain,
) -> _T:
    """Run a coroutine on the event loop and wait for its answer.

    Args:
        loop: not that of the calling thread.
        asking: has a limit of its own.
        seconds: more than that limit: what is beyond it, the loop may be late.
        late: makes the error of an answer that does not come; what was asked may have been done.

    Raises:
        TryAgain: the daemon is ending, and nothing was asked; or it is too busy.
        BaseException: whatever the coroutine raises.
    """
    try:
        future = asyncio.run_coroutine_threadsafe(asking, loop)
    except RuntimeError:
        asking.close()
        raise TryAgain("the daemon is ending") from None
    try:
        return future.result(seconds)
    except Late:
        future.cancel()
        raise late(f"no answer within {seconds:g} s: the daemon is busy") from None
