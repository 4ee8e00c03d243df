"""`make` sets an environment up once, and again for another interpreter that is named."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.programs("make")


def interpreter(path: Path, version: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho Python {version}\n")
    path.chmod(0o755)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that was set up with Python 3.11.2."""
    for name in ("Makefile", "pyproject.toml", ".ci/constraints.txt", ".ci/make-venv", ".ci/prerequisites"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes((ROOT / name).read_bytes())
    interpreter(tmp_path / ".venv/bin/python", "3.11.2")
    (tmp_path / ".venv/.installed").touch()
    return tmp_path


def planned(checkout: Path, *words: str) -> str:
    command = ["make", "--dry-run", "--no-print-directory", "setup", *words]
    done = subprocess.run(
        command, cwd=checkout, env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_what_is_set_up_is_not_set_up_again(checkout: Path) -> None:
    assert ".ci/make-venv" not in planned(checkout)


@pytest.mark.parametrize(("version", "again"), [("3.11.2", False), ("3.13.0", True)])
def test_a_named_interpreter_gets_an_environment_of_its_own(checkout: Path, version: str, *, again: bool) -> None:
    interpreter(checkout / "other", version)
    assert ('.ci/make-venv "./other"' in planned(checkout, "PYTHON=./other")) == again
