"""Work of the daemon that may block, beside the event loop.

Owns: one fresh thread for one piece of work, which the process never waits for at its end.
Refuses: plugin code (`nodeplug.hosting.runner`), and a limit of time: its caller stops waiting, the thread cannot be
stopped.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

from nodeplug.contract.errors import TryAgain

T = TypeVar("T")


def aside(work: Callable[[], T], name: str) -> "asyncio.Future[T]":
    """Begin work in a thread of its own; return what will have its answer or its exception.

    Not the executor of the loop: a few pieces of work that hang would use it up, and the end would wait for them.
    """
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def settle(answer: Any, error: BaseException | None) -> None:
        if outcome.cancelled():
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(answer)

    def run() -> None:
        answer, failure = None, None
        try:
            answer = work()
        except BaseException as error:
            failure = error
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, answer, failure)

    try:
        threading.Thread(target=run, name=name, daemon=True).start()
    except RuntimeError as error:
        outcome.set_exception(
            TryAgain(f"the daemon cannot start another thread ({error}); raise its task limit (TasksMax)")
        )
    return outcome
