"""Executing a program of our own beside the daemon.

Owns: the one way in which that is done: posix_spawn(3) with one descriptor and the default signals.
Refuses: fork: this process has threads; and what is executed, which the caller says.
"""

import errno
import os
import signal
from collections.abc import Mapping, Sequence
from typing import Final

DESCRIPTOR: Final = 3
"""The number that the descriptor has in the program."""
_REMEDIES: Final = {
    errno.EAGAIN: "raise TasksMax of the daemon's unit, or kernel.pid_max and kernel.threads-max of the node",
    errno.ENOMEM: "the node has no memory left; give the plugins that take it a `memory`, or move pods away",
    errno.EMFILE: "raise LimitNOFILE of the daemon's unit",
    errno.ENFILE: "raise fs.file-max of the node",
}
_DEFAULT: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD)


def refusal(error: OSError) -> str:
    """Say why nothing can be executed, or no end of a socket had for it, and what to do about it."""
    remedy = _REMEDIES.get(error.errno or 0)
    text = error.strerror or str(error)
    return f"{text}; {remedy}" if remedy else text


def execute(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    descriptor: int,
    *,
    stdin: str = "",
    output: int = -1,
    session: bool = False,
) -> int:
    """Execute a program; return its process id.

    Args:
        arguments: the program's path, and what it is told.
        environment: all of it.
        descriptor: what the program finds as DESCRIPTOR; everything else is closed on exec.
        stdin: a file to read; empty: that of this process.
        output: a descriptor that is its standard output and error; -1: those of this process.
        session: whether it begins a session of its own.

    Raises:
        OSError: it cannot be executed, or there is no process left.
    """
    # Dup2 onto itself would leave the mark for closing in place, so it goes by another number.
    spare = os.dup(descriptor) if descriptor == DESCRIPTOR else descriptor
    opened = [(os.POSIX_SPAWN_OPEN, 0, stdin, os.O_RDONLY, 0)] if stdin else []
    told = [(os.POSIX_SPAWN_DUP2, output, number) for number in (1, 2)] if output >= 0 else []
    try:
        return os.posix_spawn(
            arguments[0],
            [*arguments],
            environment,
            file_actions=[*opened, *told, (os.POSIX_SPAWN_DUP2, spare, DESCRIPTOR)],
            setsid=session,
            setsigmask=[],
            setsigdef=_DEFAULT,
        )
    finally:
        if spare != descriptor:
            os.close(spare)
