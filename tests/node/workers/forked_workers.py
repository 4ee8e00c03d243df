"""A process that forks plugins' processes for tests that run the life cycle of plugins themselves."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from nodeplug.testing import forked_workers
from nodeplug.testing.forked_workers import Forking


@contextmanager
def forking() -> Iterator[Forking]:
    """Start it, as a child of this process. The kernel ends workers with the thread that calls this."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", forked_workers.__file__, str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            start_new_session=True,  # Ctrl-C is for the tests
        )
    yield Forking(ours, process.pid)
    ours.close()
    process.wait()
