"""Workers that start within milliseconds: they are forked from a process that has imported everything.

Owns: that process (`serve`), which makes each worker a child of its own parent, and asking it (`Forking`).
Refuses: what only an execution does: fewer rights, a cgroup or a Python of its own, and the modules of a worker alone.

A worker that is executed spends 0.4 s of CPU time on imports, more than all the rest of a test. Loaded as a file, by
`fork_server` and by tests: as a module it would load all of `nodeplug.testing` first.
"""

import ctypes
import fcntl
import gc
import io
import json
import os
import resource
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.hookspecs import ANSWERS
from nodeplug.process import execution
from nodeplug.worker.encoding import prepare
from nodeplug.worker.inside import main

_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE_PARENT: Final = 0x8000  # the caller waits for the worker, and the kernel ends it with the caller
_PR_SET_PDEATHSIG: Final = 1
_LIBC: Final = ctypes.PyDLL(None, use_errno=True)
_AWAY: Final = 100
"""A descriptor number above those that a worker uses."""
_LONGEST: Final = 1 << 20


class Forking:
    """Client of the process that forks workers. It is safe to use from any thread.

    Args:
        orders: leads to a `serve` in a child of this process.
        pid: of that child.
    """

    def __init__(self, orders: socket.socket, pid: int) -> None:
        self._orders, self.pid, self._python = orders, pid, sys.executable
        self._one = threading.Lock()

    def execute(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        descriptor: int,
        *,
        stdin: str = "",
        output: int = -1,
        session: bool = False,
    ) -> int:
        """Start a process like `execution.execute`. A worker without a cgroup or Python of its own is forked."""
        words = [self._python, "-P", "-m", "nodeplug.worker"]
        if [*arguments[:4]] != words or _cgroups("thread-self") != _cgroups(str(self.pid)):
            return execution.execute(arguments, environment, descriptor, stdin=stdin, output=output, session=session)
        outputs = (1, 2) if output < 0 else (output, output)
        order = {"arguments": [*arguments[4:]], "environment": dict(environment), **_inherited()}
        with self._one, open(stdin, "rb") as file:  # noqa: PTH123 - it is what the caller has
            socket.send_fds(self._orders, [json.dumps(order).encode()], [file.fileno(), *outputs, descriptor])
            answer = json.loads(self._orders.recv(_LONGEST) or b'{"errno": 11}')
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return int(answer["pid"])


def fork_server() -> Forking:
    """Fork the process that runs `serve`. Call this before a second thread starts."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    daemon = os.getpid()
    pid = os.fork()  # noqa: TID251 - nothing else runs yet
    if pid == 0:
        ours.close()
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        os.setsid()
        status = serve(theirs) if os.getppid() == daemon else 0
        os._exit(status)  # noqa: TID251 - what this process was before is the other one's
    theirs.close()
    return Forking(ours, pid)


def serve(orders: socket.socket) -> int:
    """Fork a worker for each order until the socket is closed. In the child, run the worker and return its status."""
    with orders as low:  # a number that a worker may want for its own
        orders = socket.socket(fileno=fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, _AWAY))
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(orders, _LONGEST, 4)
        except ConnectionResetError:  # the daemon has gone without reading an answer
            return 0
        if not data:
            return 0
        try:
            pid = _fork()
        except OSError as error:
            orders.send(json.dumps({"errno": error.errno}).encode())
        else:
            if pid == 0:
                return _become(json.loads(data), descriptors, orders)
        for one in descriptors:
            os.close(one)


def _fork() -> int:
    ctypes.pythonapi.PyOS_BeforeFork()
    pid = int(_LIBC.syscall(_CLONE[os.uname().machine], _CLONE_PARENT, 0, 0, 0, 0))
    if pid == 0:
        ctypes.pythonapi.PyOS_AfterFork_Child()
        return 0
    code = ctypes.get_errno()
    ctypes.pythonapi.PyOS_AfterFork_Parent()
    if pid < 0:
        raise OSError(code, os.strerror(code))
    return pid


def _become(order: Mapping[str, Any], descriptors: list[int], orders: socket.socket) -> int:
    """Set the process up like `python -P -m nodeplug.worker` and run the worker."""
    os.setsid()
    for number, one in enumerate(descriptors):  # input, output, errors, and the control socket; they came in order
        os.dup2(one, number)
    for one in descriptors:
        if one >= len(descriptors):
            os.close(one)
    os.umask(order["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(order["nofile"]))
    os.environ.clear()
    os.environ.update(order["environment"])
    sys.path[:] = dict.fromkeys([*order["environment"]["PYTHONPATH"].split(os.pathsep), *sys.path])
    sys.path_importer_cache.clear()  # folders have other files by now
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)  # as with PYTHONUNBUFFERED
    sys.argv = ["nodeplug.worker", *order["arguments"]]
    with orders:
        try:
            orders.send(json.dumps({"pid": os.getpid()}).encode())
        except BrokenPipeError:  # the daemon has gone meanwhile
            return 0
    return main(order["arguments"])


def _inherited() -> dict[str, Any]:
    """Return the umask and the limit of open files of this thread, which an executed process would inherit.

    The worker cannot read them itself: /proc shows no umask of a process that is being killed.
    """
    status = Path("/proc/thread-self/status").read_text(encoding="ascii")
    umask = status.partition("\nUmask:")[2].split(maxsplit=1)[0]
    return {"umask": int(umask, 8), "nofile": resource.getrlimit(resource.RLIMIT_NOFILE)}


def _cgroups(pid: str) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")


def ready() -> None:
    """Build the encoders of all hooks in advance."""
    prepare([*ANSWERS])


if __name__ == "__main__":
    ready()
    gc.collect()
    gc.freeze()  # a garbage collection in a child would copy all that was imported
    raise SystemExit(serve(socket.socket(fileno=int(sys.argv[1]))))
