"""A process is taken for ended when all of its threads have, not when its first one has."""

import subprocess
import sys

import pytest
from tests.ended import has_ended, kill, wait_until_ended

_FIRST_THREAD_ENDS = """
import ctypes, sys, threading, time
def stay():
    while "zombie" not in open("/proc/self/status").read():
        time.sleep(0.001)
    print("ended", flush=True)
    sys.stdin.read()
threading.Thread(target=stay).start()
ctypes.CDLL(None).pthread_exit(None)
"""


def test_a_process_whose_first_thread_has_ended_is_there_until_its_last_one_ends() -> None:
    words = [sys.executable, "-c", _FIRST_THREAD_ENDS]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ended\n"
        try:
            assert not has_ended(process.pid)
            with pytest.raises(AssertionError, match=r"has not ended in 0\.05 s"):
                wait_until_ended(process.pid, 0.05)
        finally:
            kill(process.pid)
        assert has_ended(process.pid)


def test_a_process_that_is_not_there_has_ended() -> None:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    assert has_ended(process.pid)
    wait_until_ended(process.pid, 0)
