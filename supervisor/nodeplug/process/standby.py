"""What a daemon becomes whose place another one has taken, where its own process must not end: in a pod.

The DaemonSet deletes the pod when the next one is ready. Until then its container is to go on: kubelet would start an
ended one again, which would take the place back.

Owns: the wait for the end of the other daemon, after which this one serves again, and for the pod's own end.
Refuses: packages, even our own: it is a file for the bare interpreter, so that it has a tenth of a daemon's memory.
"""

import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import Final, NoReturn

_FIRST: Final = 3
"""The first descriptor that is not stdin, stdout or stderr."""


def become(process: int, command: Sequence[str]) -> NoReturn:
    """Execute this file in place of the program that runs now.

    Args:
        process: the descriptor of the daemon that serves now (pidfd_open(2)).
        command: what serves again after that one's end; its first word is a path.

    Raises:
        OSError: it cannot be executed.
    """
    os.set_inheritable(process, True)
    os.execv(sys.executable, [sys.executable, "-IS", __file__, str(process), *command])  # noqa: S606 - no shell


def main(process: int, command: Sequence[str]) -> NoReturn:
    """Wait for the end of a process, and execute a command then; SIGTERM and SIGINT end the wait."""
    # What the program before has left open on exec, such as a socket that nobody would answer on.
    os.closerange(_FIRST, process)
    os.closerange(process + 1, 1 << 16)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: os._exit(0))  # noqa: TID251 - nothing is left to be done
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody else reaps what plugins have started
    wait = select.poll()
    wait.register(process, select.POLLIN)
    wait.poll()
    os.close(process)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.execv(command[0], [*command])  # noqa: S606 - a program and its arguments, no shell


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
