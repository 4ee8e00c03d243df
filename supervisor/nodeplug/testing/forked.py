"""Daemons and commands that start within milliseconds: forked from a process that has imported everything already.

Owns: one such process for each Python environment, and handles of what it forked.
Refuses: to fork this process, which has threads (`fork_server` does it, in a process of its own).

A daemon that is executed spends half a second of CPU time on imports, nearly all of a test's cost.
"""

import atexit
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import NotReady

_SERVER: Final = Path(__file__).with_name("fork_server.py")
"""Run as a file: as a module it would load all of `nodeplug.testing` first."""
_SERVERS: Final[dict[tuple[tuple[str, str], ...], "_Server"]] = {}
_LOCK: Final = threading.Lock()
workers_too = False
"""Whether a forked daemon forks its workers instead of executing them (`forked_workers`). This is
cheaper, but less like a node."""


class Forked:
    """A process as `subprocess.Popen` shows one, as far as a node needs it.

    Attributes:
        pid: its id, which is not reused before its status was collected.
        returncode: its exit status, negative for a signal, or None while it runs.
    """

    def __init__(self, server: "_Server", pid: int) -> None:
        self._server = server
        self._descriptor = os.pidfd_open(pid)
        self.pid = pid
        server.children.add(pid)
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return its exit status, or None while it runs."""
        return self._collect(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end.

        Raises:
            subprocess.TimeoutExpired: it did not end within so many seconds.
        """
        status = self._collect(None if timeout is None else round(timeout * 1000))
        if status is None:
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal; one that has ended gets none."""
        if self.poll() is None:
            signal.pidfd_send_signal(self._descriptor, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _collect(self, milliseconds: int | None) -> int | None:
        if self.returncode is None:
            ended = select.poll()
            ended.register(self._descriptor, select.POLLIN)
            if ended.poll(milliseconds):
                self.returncode = int(self._server.ask({"wait": self.pid})["status"])
                self._server.children.discard(self.pid)
                os.close(self._descriptor)
        return self.returncode


def search_path() -> tuple[str, ...]:
    """Return the folders from which this process imports, for the PYTHONPATH of what is forked."""
    return tuple(dict.fromkeys(str(Path(entry).absolute()) for entry in sys.path))


def prepare(env: Mapping[str, str]) -> None:
    """Let the process that forks start importing, in parallel to what comes before the first `start`."""
    _server(env)


def start(
    target: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    stdin: Path = Path(os.devnull),
    stdout: Path,
    stderr: Path,
    repeated: bool = False,
    imports: Sequence[str] = (),
    beside: int | None = None,
) -> Forked:
    """Start a module or a file of Python in the namespaces of the calling thread, with `/` as its folder.

    Args:
        target: a module, run as `python -m` would, or the path of a file.
        arguments: of its command line.
        env: its environment.
        stdin: the path that it reads.
        stdout: a file to which it appends.
        stderr: likewise.
        repeated: whether it is a module that is started many times: it is imported once, before, and each child finds
            what it imports. As long as it is not `__main__` it does no more than that.
        imports: modules that it will import; each is imported once, before, where it can be found without PYTHONPATH.
        beside: the id of a process in whose namespaces and root directory it runs instead.

    Raises:
        NotReady: the process that forks has ended, or that one beside which it is to run.
    """
    order = {
        "target": target,
        "argv": [target, *arguments],
        "env": dict(env),
        "repeated": repeated,
        "imports": list(imports),
        "streams": [str(stdin), str(stdout), str(stderr)],
        "workers": workers_too,
        "task": f"/proc/{beside or f'{os.getpid()}/task/{threading.get_native_id()}'}",
    }
    server = _server(env)
    answer = server.ask(order)
    if "error" in answer:
        raise NotReady(answer["error"])
    return Forked(server, int(answer["pid"]))


def run(
    target: str,
    arguments: Sequence[str],
    env: Mapping[str, str],
    *,
    repeated: bool = False,
    beside: int | None = None,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """Do so and wait for its end; return its status and what it printed.

    Args:
        target: see `start`.
        arguments: see `start`.
        env: see `start`.
        repeated: see `start`.
        beside: see `start`.
        timeout: in seconds; it is killed then.

    Raises:
        NotReady: see `start`.
        subprocess.TimeoutExpired: it did not end in time.
    """
    with tempfile.NamedTemporaryFile() as out, tempfile.NamedTemporaryFile() as err:
        files = Path(out.name), Path(err.name)
        process = start(target, arguments, env, stdout=files[0], stderr=files[1], repeated=repeated, beside=beside)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        said = [stream.read().decode() for stream in (out, err)]
    return subprocess.CompletedProcess([target, *arguments], status, *said)


def close_idle() -> None:
    """End the fork servers that have no child. A daemon shares memory with the fork server that started it."""
    with _LOCK:
        for key in [key for key, server in _SERVERS.items() if not server.children]:
            _SERVERS.pop(key).close()


def _server(env: Mapping[str, str]) -> "_Server":
    """Return the process that forks where the interpreter reads these variables.

    Each child has its own PYTHONPATH, and of a process that forks only that matters from which it has imported.
    """
    read = {name: value for name, value in env.items() if name.startswith(("PYTHON", "LD_", "MALLOC_"))}
    read["PYTHONPATH"] = _home(read.get("PYTHONPATH", ""))
    key = (("", sys.executable), *sorted(read.items()))
    with _LOCK:
        if key not in _SERVERS or not _SERVERS[key].running:
            for other in [name for name, server in _SERVERS.items() if not server.children]:
                _SERVERS.pop(other).close()  # each holds what it imported, some 60 MiB
            _SERVERS[key] = _Server(env)
        return _SERVERS[key]


def _home(path: str) -> str:
    """Return the folder from which nodeplug is imported: of a PYTHONPATH, else where this process has found it."""
    folders = [Path(folder) for folder in path.split(os.pathsep) if folder]
    return str(next((one for one in folders if (one / "nodeplug" / "__init__.py").exists()), _SERVER.parents[2]))


class _Server:
    def __init__(self, env: Mapping[str, str]) -> None:
        self.children: set[int] = set()
        self._lock = threading.Lock()
        # gRPC reads its variables when it is imported; what `nodeplug serve` sets must be set before.
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(_SERVER), env.get("PYTHONPATH", "")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={"GRPC_VERBOSITY": "NONE", **{name: value for name, value in env.items() if name != "PYTHONPATH"}},
            cwd="/",
        )
        atexit.register(self.close)

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def ask(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Send an order and return its answer.

        Raises:
            NotReady: the process has ended.
        """
        with self._lock:
            to, back = self._process.stdin, self._process.stdout
            assert to is not None
            assert back is not None
            try:
                to.write(json.dumps(order).encode() + b"\n")
                to.flush()
                answer = back.readline()
            except BrokenPipeError:
                answer = b""
        if not answer:
            raise NotReady(f"the process that forks daemons ended with {self._process.wait()}; its stderr says why")
        return dict(json.loads(answer))

    def close(self) -> None:
        atexit.unregister(self.close)
        self._process.communicate()
