"""Plugins' processes that start within milliseconds: forked by a process that has imported everything already.

A worker that is executed spends 0.4 s of CPU time on imports, more than all the rest of a test. What only an execution
shows is tested with daemons, which execute theirs, as does every worker with less rights than the daemon.
"""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from nodeplug.process import execution

_SERVER = Path(__file__).with_name("worker_server.py")
_CGROUPS = Path("/proc/self/cgroup")


class ForkedWorkers:
    """The process that forks, a child of this one. The kernel ends workers with the thread that makes this."""

    def __init__(self) -> None:
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._python, self._cgroups = sys.executable, _CGROUPS.read_text(encoding="ascii")
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_SERVER), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                start_new_session=True,  # Ctrl-C is for the tests
            )

    def execute(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        descriptor: int,
        *,
        stdin: str = "",
        session: bool = False,
    ) -> int:
        """Do what `execution.execute` does, as its caller sees it; fork where that makes no difference."""
        words = [self._python, "-P", "-m", "nodeplug.worker"]
        if [*arguments[:4]] != words or _CGROUPS.read_text(encoding="ascii") != self._cgroups:
            return execution.execute(arguments, environment, descriptor, stdin=stdin, session=session)
        order = {"arguments": arguments[4:], "environment": dict(environment)}
        with open(stdin, "rb") as file:  # noqa: PTH123 - it is what the caller has
            socket.send_fds(self._orders, [json.dumps(order).encode()], [file.fileno(), 1, 2, descriptor])
        answer = json.loads(self._orders.recv(1 << 10))
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return int(answer["pid"])

    def close(self) -> None:
        self._orders.close()
        self._process.wait()
