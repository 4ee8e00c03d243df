"""Starting the process of a worker.

Owns: the one thread that starts them, their arguments, environment and descriptors, and which Python they have.
Refuses: fork: posix_spawn(3) shares the daemon's memory until the new program runs, and runs none of its code.

A worker asks the kernel to end it together with the thread that started it (prctl(2), PR_SET_PDEATHSIG), so that
thread stays for as long as the daemon.
"""

import errno
import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue
from typing import Final

from nodeplug.config.privileges import Privileges
from nodeplug.contract.errors import TryAgain
from nodeplug.loading.classes import PluginRefused
from nodeplug.process.environment import copy_environment
from nodeplug.process.execution import DESCRIPTOR, execute, refusal
from nodeplug.worker.shortage import end_first
from nodeplug.worker.wire import VERSION

OLDEST: Final = "3.11"
"""The first version of Python that nodeplug runs with."""
_UNUSABLE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ENOEXEC, errno.ELOOP})
_OF_THIS_PYTHON: Final = frozenset({"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"})
_NOT_INHERITED: Final = frozenset({"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "LISTEN_FDS", "LISTEN_PID"})
_STARTING: Final = threading.Lock()
_LINE: Final[SimpleQueue[Callable[[], None]]] = SimpleQueue()
_thread: threading.Thread | None = None
_HERE: Final = Path(__file__).parent


def spawn(control: int, output: int, privileges: Privileges, entrances: Sequence[Path] = (), python: str = "") -> int:
    """Start a worker; return its process id. May block.

    Args:
        control: the worker's end of the control socket.
        output: its standard output and error.
        privileges: what it runs with.
        entrances: of its cgroups.
        python: a path; the worker has the packages of that Python alone. By default it has this one's.

    Raises:
        PluginRefused: there is no such Python, or it is no program.
        TryAgain: the node has no process left, or this Python cannot be executed.
    """
    about = [str(DESCRIPTOR), str(VERSION), str(os.getpid())]
    worker = [sys.executable, "-P", "-m", "nodeplug.worker", *about]
    if python:
        _check(python)
        worker = [python, "-", *about, OLDEST]
    arguments = [*_launcher(privileges, entrances, apart=bool(python)), *worker]
    outcome: Future[int] = Future()

    def work() -> None:
        try:
            outcome.set_result(_spawn(arguments, control, output, privileges, apart=bool(python)))
        except OSError as error:
            if arguments[0] == python and error.errno in _UNUSABLE:
                outcome.set_exception(_unusable(python, error.strerror or ""))
                return
            text = f"the daemon cannot start a process for a plugin, {arguments[0]}: {refusal(error)}"
            outcome.set_exception(TryAgain(text))
        except BaseException as error:
            outcome.set_exception(error)

    _start_thread()
    _LINE.put(work)
    return outcome.result()


def _check(python: str) -> None:
    """Refuse a Python that nobody can execute; whether the plugin's user can is seen by the launcher."""
    try:
        executable = stat.S_ISREG(Path(python).stat().st_mode) and os.access(python, os.X_OK)
    except OSError as error:
        raise _unusable(python, error.strerror or "") from None
    if not executable:
        raise _unusable(python, "it is not an executable file")


def _unusable(python: str, why: str) -> PluginRefused:
    return PluginRefused(
        f"its Python, {python}, cannot be executed: {why}; mend that, then reload the plugin by its name"
    )


def _launcher(privileges: Privileges, entrances: Sequence[Path], *, apart: bool) -> list[str]:
    """Return what comes before the command: nothing if nothing has to be given up, since a Python takes 10 ms."""
    if not (privileges.own or entrances):
        return []
    kept = privileges.capabilities
    given = (
        "\n".join(map(str, entrances)) or None,
        privileges.user,
        privileges.group,
        ",".join(map(str, kept)) if kept is not None else None,
        privileges.nice,
        privileges.tasks,
    )
    words = ["-" if one is None else str(one) for one in given]
    program = [sys.executable, "-IS", str(_HERE / "launching.py"), str(DESCRIPTOR), str(os.getpid())]
    return [*program, *words, "-" if apart else str(_HERE)]


def _spawn(arguments: list[str], control: int, output: int, privileges: Privileges, *, apart: bool) -> int:
    left = _NOT_INHERITED | _OF_THIS_PYTHON
    own = copy_environment()
    environment = {name: value for name, value in own.items() if name not in left}
    environment["PYTHONUNBUFFERED"] = "1"  # what is printed is logged at once, also before an end without notice
    if privileges.user is not None:
        environment |= {"HOME": privileges.home, "USER": privileges.name, "LOGNAME": privileges.name}
    if not apart:
        environment |= {name: own[name] for name in _OF_THIS_PYTHON & own.keys()}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    program = str(_HERE / "entering.py") if apart else os.devnull
    pid = execute(arguments, environment, control, stdin=program, output=output, session=True)
    end_first(pid)
    return pid


def _start_thread() -> None:
    global _thread  # noqa: PLW0603 - one for the process, because the kernel asks which thread started a worker
    with _STARTING:
        if _thread is None or not _thread.is_alive():
            _thread = threading.Thread(target=_serve, name="starts workers", daemon=True)
            _thread.start()


def _serve() -> None:
    while True:
        _LINE.get()()
