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


@pytest.mark.whole
def test_every_python_that_a_test_starts_is_delayed_and_none_afterwards(tmp_path: Path) -> None:
    """Costs 1 s. All of 150 threads begin early with a chance of 1 in 10^10."""
    (tmp_path / "test_played.py").write_text(PLAYED)
    pytest_ = ["-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    done = subprocess.run(
        [sys.executable, "-m", "tests.delays", *pytest_], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not Path(sysconfig.get_path("purelib"), "nodeplug_delays.pth").exists()
