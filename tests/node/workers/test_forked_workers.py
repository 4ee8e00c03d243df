"""A plugin's process that is forked for tests starts and ends like one that is executed, also while its daemon dies."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from nodeplug.process.execution import DESCRIPTOR
from nodeplug.testing import forked_workers
from nodeplug.worker.wire import VERSION

pytestmark = pytest.mark.unprivileged

_DAEMON = f"""
import ctypes, os, socket, sys, threading, time
from nodeplug.testing.forked_workers import fork_server

def ask():
    while "Umask:" in open("/proc/self/status").read():  # the main thread still runs
        time.sleep(0.001)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-P", "-m", "nodeplug.worker", "{DESCRIPTOR}", "{VERSION}", str(os.getpid())]
    fork_server().execute(words, dict(os.environ), theirs.fileno(), stdin=os.devnull)
    theirs.close()
    os.write(1, ours.recv(1000))
    os._exit(0)

threading.Thread(target=ask).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def searching() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def test_a_worker_is_forked_for_a_daemon_whose_main_thread_has_ended() -> None:
    """That is so for a moment whenever a daemon is killed."""
    words = [sys.executable, "-c", _DAEMON]
    done = subprocess.run(words, env=searching(), capture_output=True, timeout=60, check=False)
    assert (json.loads(done.stdout)["op"], done.stderr) == ("hello", b"")


def test_a_process_that_forks_ends_without_a_word_when_its_daemon_goes_before_an_answer() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-P", forked_workers.__file__, str(theirs.fileno())]
    process = subprocess.Popen(words, pass_fds=[theirs.fileno()], env=searching(), stderr=subprocess.PIPE)
    theirs.close()
    with control, open(os.devnull, "r+b") as nothing:  # noqa: PTH123
        arguments = [str(DESCRIPTOR), str(VERSION), str(os.getpid())]
        order = {"arguments": arguments, "environment": searching(), "umask": 0o22, "nofile": [1024, 1024]}
        socket.send_fds(ours, [json.dumps(order).encode()], [*[nothing.fileno()] * 3, control.fileno()])
    select.select([ours], [], [])
    told.close()
    ours.close()  # with the answer unread
    assert (process.communicate(timeout=60)[1], process.returncode) == (b"", 0)


def test_a_worker_whose_daemon_has_gone_ends_without_a_word(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    words = [sys.executable, "-P", forked_workers.__file__, str(theirs.fileno())]
    with theirs, subprocess.Popen(words, pass_fds=[theirs.fileno()], env=searching()) as server:
        theirs.close()
        server.send_signal(signal.SIGSTOP)
        os.waitpid(server.pid, os.WUNTRACED)
        told, control = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with (tmp_path / "errors").open("wb") as errors, control:
            order = {"arguments": [], "environment": searching(), "umask": 0o22, "nofile": [1024, 1024]}
            files = [errors.fileno(), errors.fileno(), errors.fileno(), control.fileno()]
            socket.send_fds(ours, [json.dumps(order).encode()], files)
        ours.close()
        server.send_signal(signal.SIGCONT)
        with told:
            assert told.recv(1) == b""
    assert (tmp_path / "errors").read_text() == ""
