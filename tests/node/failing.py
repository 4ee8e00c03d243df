"""A call of which one step fails, once: each of its steps in turn.

The steps are those of `killing`. What undoes the call afterwards has no failures.
"""

import errno
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.node.killing import STEPS, Step

from nodeplug import PluginError

CALLS = "scratch-call"
"""The threads of `run_in`."""
_MOST = 200


@contextmanager
def _failing(number: int, *more: Step) -> Iterator[Callable[[], bool]]:
    """Let a step raise EIO; what it yields says whether the work came so far."""
    count = 0

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*arguments: Any, **keys: Any) -> Any:
            nonlocal count
            # Others, such as a plugin's look at the kernel now and then, have no part in the call.
            count += threading.current_thread().name == CALLS
            if count == number and threading.current_thread().name == CALLS:
                raise OSError(errno.EIO, "a step that fails")
            return function(*arguments, **keys)

        return step

    with pytest.MonkeyPatch.context() as patch:
        for owner, name in (*STEPS, *more):
            patch.setattr(owner, name, counted(getattr(owner, name)))
        yield lambda: count >= number


def every_failure(work: Callable[[], object], *more: Step, least: int) -> Iterator[bool]:
    """Do some work once for each of its steps, which fails; whether the work did is yielded.

    Args:
        work: runs in threads of `run_in`, as calls do, and is to come to the same steps each time.
        more: what is a step besides those of `killing`.
        least: how many steps it has at least.
    """
    for number in range(1, _MOST):
        failed = False
        with _failing(number, *more) as reached:
            try:
                work()
            except (PluginError, OSError):
                failed = True
            there = reached()
        if not there:
            assert not failed
            assert number > least
            return
        yield failed
    raise AssertionError(f"it has more than {_MOST} steps")
