"""Tests that run while everything comes late at random."""

import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAYED = """
import subprocess, sys

CODE = '''
import threading, time
begun = []
def begin(since): begun.append(time.monotonic() - since)
threads = [threading.Thread(target=begin, args=(time.monotonic(),)) for _ in range(150)]
for one in threads: one.start()
for one in threads: one.join()
print(max(begun))
'''

def test_a_thread_of_a_program_begins_late():
    assert float(subprocess.run([sys.executable, "-c", CODE], capture_output=True, check=True).stdout) > 0.05
"""
LIVING_ON = """
import os
from nodeplug.testing.sandbox import Sandbox

def is_open(inode):
    for descriptor in range(3, 256):
        try:
            if os.fstat(descriptor).st_ino == inode:
                return True
        except OSError:
            continue
    return False

def test_a_namespace_lives_on(tmp_path):
    late = []
    for number in range(100):
        with Sandbox(tmp_path / str(number)) as sandbox:
            inode = os.fstat(sandbox.netns.fd).st_ino
        late.append(is_open(inode))
    assert any(late)
    assert not all(late)
"""
pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("delays")]  # a run takes away what delays the other


def play(folder: Path, test: str) -> None:
    """Run a test while everything comes late at random."""
    (folder / "test_played.py").write_text(test)
    pytest_ = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(folder)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.delays", *pytest_], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_python_that_a_test_starts_is_delayed_and_none_afterwards(tmp_path: Path) -> None:
    """Costs 1 s. All of 150 threads begin early with a chance of 1 in 10^10."""
    play(tmp_path, PLAYED)
    assert not Path(sysconfig.get_path("purelib"), "nodeplug_delays.pth").exists()


@pytest.mark.node
def test_some_namespaces_that_a_test_closes_end_late(tmp_path: Path) -> None:
    """Costs 8 s, most of it waiting. All of 100 end at once with a chance of 1 in 10^9."""
    play(tmp_path, LIVING_ON)
