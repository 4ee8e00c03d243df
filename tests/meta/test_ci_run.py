"""The script of continuous integration, with commands that do nothing: what runs, what a failure ends, what is told."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = """#!/bin/bash
trap 'echo "$1" >>{folder}/ended' EXIT
case $1 in
{failing}) [ {hanging} = - ] || until [ -e {folder}/hangs ]; do sleep 0.01; done; exit 3 ;;
{hanging}) touch {folder}/hangs; sleep 60 & wait $! ;;
suite) echo "5 passed" ;;
esac
"""
BESIDE = {"set-up", "image", "python", "bootstrap of the bare root"}
AFTER = ["kubelet", "consumers", "demo", "bare root", "lowest versions", "lint", "benchmark", "tests"]


def play(folder: Path, *, failing: str = "-", hanging: str = "-") -> "subprocess.CompletedProcess[str]":
    """Run the script in a folder where `make` and the other commands are acted out."""
    for name in ("bin", "checkout/.ci"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / "checkout/.ci")
    (folder / "checkout/.ci/debian-packages").write_text("gcc\n")
    programs = {"bin/make": MAKE.format(folder=folder, failing=failing, hanging=hanging)}
    programs |= dict.fromkeys(("bin/apt-get", "checkout/.ci/bare-root", "checkout/.ci/lowest-versions"), "#!/bin/sh\n")
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    return subprocess.run([folder / "checkout/.ci/run"], env=env, capture_output=True, text=True, check=False)


def told(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the parts of the table at the end."""
    _, _, table = done.stdout.partition("== seconds and share of each part")
    return [line.partition("%")[2].strip() for line in table.splitlines() if "%" in line]


def test_every_part_runs_and_the_last_line_is_that_of_the_tests(tmp_path: Path) -> None:
    done = play(tmp_path)
    parts = told(done)
    assert done.returncode == 0
    assert (parts[0], set(parts[1:5]), parts[5:]) == ("packages", BESIDE, AFTER)
    assert done.stdout.splitlines()[-1] == "5 passed"


@pytest.mark.parametrize(
    ("failing", "part"), [("demo", "demo"), ("image", "image"), ("lint", "lint"), ("suite", "tests")]
)
def test_the_first_part_that_fails_is_the_last_one(failing: str, part: str, tmp_path: Path) -> None:
    done = play(tmp_path, failing=failing)
    assert done.returncode == 3
    assert f"{part} (failed)" in told(done)
    assert ("tests" in "".join(told(done))) == (part == "tests")
    assert not list(tmp_path.glob("tmp.*"))


def test_a_part_that_fails_ends_those_beside_it_which_clean_up(tmp_path: Path) -> None:
    done = play(tmp_path, failing="python", hanging="image")
    assert done.returncode == 3
    assert "== image is ended, too" in done.stdout
    assert "python (failed)" in told(done)
    assert "image" in (tmp_path / "ended").read_text().split()
