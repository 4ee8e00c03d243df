"""A session that uses more CPU time than its budget fails, with one process that runs tests and with several."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("budget", "status"), [("0.01", 1), ("1000", 0)])
def test_a_session_fails_if_it_uses_a_fifth_more_than_its_budget(workers: str, budget: str, status: int) -> None:
    options = ("-q", "-p", "no:cacheprovider", "-m", "quick", "-n", workers, "--cpu-budget", budget)
    command = [sys.executable, "-m", "pytest", *options, "tests/unit/test_ranges.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stdout + done.stderr
    assert ("more than a fifth above the budget" in done.stdout) is bool(status)
