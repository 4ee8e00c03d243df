"""The demo, as root and as an ordinary user."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NOBODY = "65534"
AS_NOBODY = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--"]


def play(*prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, "-m", "nodeplug", "demo"]
    env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8"}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=env, cwd="/")


def test_it_ends_well_as_root_and_leaves_nothing() -> None:
    before = sorted(path.name for path in Path("/tmp").glob("nodeplug-demo-*"))
    done = play()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ nothing is left" in done.stdout
    assert sorted(path.name for path in Path("/tmp").glob("nodeplug-demo-*")) == before


def test_it_ends_well_as_an_ordinary_user() -> None:
    readable = subprocess.run([*AS_NOBODY, sys.executable, "-c", "import nodeplug"], check=False, capture_output=True)
    if readable.returncode:
        pytest.skip("needs a checkout that other users may read")
    if shutil.which("unshare") and subprocess.run([*AS_NOBODY, "unshare", "-Urnm", "true"], check=False).returncode:
        pytest.skip("needs user namespaces for ordinary users")
    done = play(*AS_NOBODY)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ nothing is left" in done.stdout


def test_the_readme_shows_what_it_prints() -> None:
    shown = (Path(__file__).parents[2] / "README.md").read_text()
    printed = play().stdout
    steps = [line.split()[1] for line in printed.splitlines() if line.startswith("✓")]
    assert [line.split()[1] for line in shown.splitlines() if line.startswith("✓")] == steps
