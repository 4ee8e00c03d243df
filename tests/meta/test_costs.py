"""A session that uses more CPU time than its budget fails, with one process that runs tests and with several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = """
import subprocess, sys
import pytest
@pytest.mark.parametrize("number", range(250))
def test_nothing(number):
    pass
def test_it():
    work = "from tests import costs; [costs.time_fixed_work() for _ in range(PIECES)]"
    subprocess.run([sys.executable, "-c", work], check=True)
"""
"""A test whose child uses 45 ms of the machine of budgets for each piece. All else takes a second or two.

The other tests are there for the speed of the machine, which is measured once in fifty tests: one measurement alone may
be twice too slow beside other load.
"""


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("pieces", "budget", "status"), [(80, "2", 1), (0, "1000", 0)])
def test_a_session_fails_if_it_and_its_children_use_a_fifth_more_than_its_budget(
    workers: str, pieces: int, budget: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TEST.replace("PIECES", str(pieces)))
    plugins = ("-p", "tests.costs", "-p", "xdist", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plugins, "-n", workers, "--cpu-budget", budget],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    assert ("more than a fifth above the budget" in done.stdout) is bool(status)
