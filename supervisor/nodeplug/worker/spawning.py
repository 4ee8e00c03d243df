"""Starting the process of a worker.

Owns: the one thread that starts them, their arguments, environment and descriptors.
Refuses: fork: posix_spawn(3) shares the daemon's memory until the new program runs, and runs none of its code.

A worker asks the kernel to end it together with the thread that started it (prctl(2), PR_SET_PDEATHSIG), so that
thread stays for as long as the daemon.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import TryAgain
from nodeplug.worker.wire import VERSION

CONTROL: Final = 3
"""The descriptor of the control socket in a worker."""
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})
_STARTING: Final = threading.Lock()
_LINE: Final[SimpleQueue[Callable[[], None]]] = SimpleQueue()
_thread: threading.Thread | None = None
_HERE: Final = Path(__file__).parent


def spawn(control: int, privileges: Privileges) -> int:
    """Start a worker with this Python and its packages; return its process id. May block.

    Raises:
        TryAgain: the node has no process left, or this Python cannot be executed.
    """
    worker = [sys.executable, "-P", "-m", "nodeplug.worker", str(CONTROL), str(VERSION), str(os.getpid())]
    arguments = [*_launcher(privileges), *worker]
    outcome: Future[int] = Future()

    def work() -> None:
        try:
            outcome.set_result(_spawn(arguments, control, privileges))
        except OSError as error:
            text = f"the daemon cannot start a process for a plugin: {error.strerror}: {arguments[0]}; "
            outcome.set_exception(TryAgain(f"{text}see TasksMax and MemoryMax of its unit"))
        except BaseException as error:
            outcome.set_exception(error)

    _start_thread()
    _LINE.put(work)
    return outcome.result()


def _launcher(privileges: Privileges) -> list[str]:
    """Return what comes before the command: nothing if nothing has to be given up, since a Python takes 10 ms."""
    if not privileges.own:
        return []
    kept = privileges.capabilities
    given = (
        privileges.user,
        privileges.group,
        ",".join(map(str, kept)) if kept is not None else None,
        privileges.nice,
        privileges.tasks,
    )
    words = ["-" if one is None else str(one) for one in given]
    program = [sys.executable, "-IS", str(_HERE / "launching.py"), str(CONTROL), str(os.getpid())]
    return [*program, *words, str(_HERE)]


def _spawn(arguments: list[str], control: int, privileges: Privileges) -> int:
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    if privileges.user is not None:
        environment |= {"HOME": privileges.home, "USER": privileges.name, "LOGNAME": privileges.name}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    # Everything else is closed on exec. Dup2 onto itself would leave that mark in place, so it goes by another number.
    spare = os.dup(control) if control == CONTROL else control
    try:
        return os.posix_spawn(
            arguments[0],
            arguments,
            environment,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, spare, CONTROL),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD],
        )
    finally:
        if spare != control:
            os.close(spare)


def _start_thread() -> None:
    global _thread  # noqa: PLW0603 - one for the process, because the kernel asks which thread started a worker
    with _STARTING:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_serve, name="starts workers", daemon=True)
            _thread.start()


def _serve() -> None:
    while True:
        _LINE.get()()
