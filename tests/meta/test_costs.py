"""A session that uses more CPU time than its budget fails, with one process that runs tests and with several."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("workers", ["0", "2"])
@pytest.mark.parametrize(("budget", "status"), [("0.01", 1), ("1000", 0)])
def test_a_session_fails_if_it_uses_a_fifth_more_than_its_budget(
    workers: str, budget: str, status: int, tmp_path: Path
) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text("def test_it(): pass\n")
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
