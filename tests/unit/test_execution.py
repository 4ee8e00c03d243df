"""Why nothing can be executed is told with what to do about it."""

import errno
import os

import pytest

from nodeplug.process.execution import refusal


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (errno.EAGAIN, "Resource temporarily unavailable; raise TasksMax of the daemon's unit, or kernel.pid_max"),
        (errno.ENOMEM, "Cannot allocate memory; the node has no memory left; give the plugins that take it a `memory`"),
        (errno.EMFILE, "Too many open files; raise LimitNOFILE of the daemon's unit"),
    ],
)
def test_who_cannot_be_executed_for_a_limit_says_which_to_raise(code: int, told: str) -> None:
    assert refusal(OSError(code, os.strerror(code))).startswith(told)


def test_any_other_reason_is_told_alone() -> None:
    missing = FileNotFoundError(errno.ENOENT, "No such file or directory", "/python")
    assert refusal(missing) == "No such file or directory"
