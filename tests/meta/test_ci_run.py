"""The script of continuous integration, with commands that do nothing: what runs, what a failure ends, what is told."""

import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from nodeplug.install.native import compiler

pytestmark = pytest.mark.programs("awk")
ROOT = Path(__file__).parents[2]
MAKE = """#!/bin/bash
trap 'echo "$1" >>{folder}/ended' EXIT
echo "$@" >>{folder}/asked
case $1 in
{failing}) printf "much before\\nFAILED $1\\n"
    [ {hanging} = - ] || until [ -e {folder}/hangs ]; do sleep 0.01; done; exit 3 ;;
{hanging}) touch {folder}/hangs; sleep 60 & wait $! ;;
quick | rest) echo "$1: 5 passed" ;;
esac
"""
DIES = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>
int setpgid(pid_t pid, pid_t group) {
    static int (*next)(pid_t, pid_t);
    if (!next) *(void **)&next = dlsym(RTLD_NEXT, "setpgid");
    if (pid == getpid() && group == pid && getppid() == atoi(getenv("SCRIPT"))
        && open(getenv("ONCE"), O_CREAT | O_EXCL, 0600) >= 0) raise(SIGTERM);
    return next(pid, group);
}
"""
"""Ends the first part that runs beside others as it begins, when it still has what the script has for its own end."""
ACTED = ("bin/apt-get", "checkout/.ci/bare-root", "checkout/.venv/bin/python")
BESIDE = {"set-up", "image", "bootstrap of the bare root"}
AFTER = ["lint", "quick suite", "demo", "hidden programs", "bare root", "consumers", "all other tests"]


def play(
    folder: Path, *, failing: str = "-", hanging: str = "-", preload: str = ""
) -> "subprocess.CompletedProcess[str]":
    """Run the script in a folder where `make` and the other commands are acted out."""
    for name in ("bin", "checkout/.ci", "checkout/.venv/bin"):
        (folder / name).mkdir(parents=True)
    shutil.copy(ROOT / ".ci" / "run", folder / "checkout/.ci")
    (folder / "checkout/.ci/debian-packages").write_text("gcc\n")
    programs = {"bin/make": MAKE.format(folder=folder, failing=failing, hanging=hanging)}
    programs |= dict.fromkeys(ACTED, "#!/bin/sh\n")
    for name, text in programs.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "TMPDIR": str(folder)}
    if preload:
        env |= {"LD_PRELOAD": preload, "ONCE": str(folder / "once")}
    command = ["bash", "-c", f"SCRIPT=$$ exec {folder}/checkout/.ci/run"]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False)


def told(done: "subprocess.CompletedProcess[str]") -> list[str]:
    """Return the parts of the table at the end."""
    _, _, table = done.stdout.partition("== seconds and share of each part")
    return [line.partition("%")[2].strip() for line in table.splitlines() if "%" in line]


def test_every_part_runs_and_the_last_line_is_that_of_the_tests(tmp_path: Path) -> None:
    done = play(tmp_path)
    parts = told(done)
    assert done.returncode == 0
    assert (parts[0], set(parts[1:4]), parts[4:]) == ("packages", BESIDE, AFTER)
    assert done.stdout.splitlines()[-1] == "rest: 5 passed"


@pytest.mark.parametrize(
    ("failing", "part"), [("demo", "demo"), ("image", "image"), ("lint", "lint"), ("quick", "quick suite")]
)
def test_the_first_part_that_fails_is_the_last_one(failing: str, part: str, tmp_path: Path) -> None:
    done = play(tmp_path, failing=failing)
    assert done.returncode == 3
    assert told(done)[-1] == f"{part} (failed)" or failing == "image"
    assert f"{part} (failed)" in told(done)
    assert "consumers" not in told(done)
    assert not list(tmp_path.glob("tmp.*"))


@pytest.mark.parametrize("failing", ["image", "quick"])
def test_what_failed_is_told_before_what_each_part_took(failing: str, tmp_path: Path) -> None:
    done = play(tmp_path, failing=failing)
    _, _, end = done.stdout.partition(f"== {'quick suite' if failing == 'quick' else failing} failed\n")
    assert end.splitlines()[:2] == [f"FAILED {failing}", "== seconds and share of each part; some ran beside others"]


def test_a_part_that_fails_ends_those_beside_it_which_clean_up(tmp_path: Path) -> None:
    done = play(tmp_path, failing="setup", hanging="image")
    assert done.returncode == 3
    assert "== image is ended, too" in done.stdout
    assert "set-up (failed)" in told(done)
    assert "image" in (tmp_path / "ended").read_text().split()


@pytest.mark.programs("cc")
@pytest.mark.usefixtures("has_compiler")
def test_a_part_that_is_ended_as_it_begins_leaves_the_end_to_the_script(tmp_path: Path) -> None:
    library = tmp_path / "dies.so"
    command = [*compiler(), "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=DIES, text=True, check=True)
    done = play(tmp_path / "run", preload=str(library))
    assert (tmp_path / "run/once").exists()
    assert done.returncode in {127, 128 + signal.SIGTERM}  # bash 5.2 does not know any more what has ended it
    assert done.stdout.count("== seconds and share of each part") == 1
    assert "packages" in told(done)


def test_the_quick_suite_runs_with_a_budget(tmp_path: Path) -> None:
    play(tmp_path)
    (quick,) = [line for line in (tmp_path / "asked").read_text().splitlines() if line.startswith("quick ")]
    assert re.search(r"--cpu-budget [1-9][0-9]+\b", quick)
