"""The script of continuous integration, with commands that do nothing: what runs, what a failure ends, what is told."""

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from nodeplug.install.native import compiler

ROOT = Path(__file__).parents[2]
MAKE = """#!/bin/bash
trap 'echo "$1" >>{folder}/ended' EXIT
case $1 in
{failing}) [ {hanging} = - ] || until [ -e {folder}/hangs ]; do sleep 0.01; done; exit 3 ;;
{hanging}) touch {folder}/hangs; sleep 60 & wait $! ;;
suite) echo "5 passed" ;;
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
pytestmark = pytest.mark.programs("awk")
BESIDE = {"set-up", "image", "python", "bootstrap of the bare root"}
AFTER = ["kubelet", "consumers", "demo", "bare root", "lowest versions", "lint", "benchmark", "tests"]


def play(
    folder: Path, *, failing: str = "-", hanging: str = "-", preload: str = ""
) -> "subprocess.CompletedProcess[str]":
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


@pytest.mark.programs("cc")
def test_a_part_that_is_ended_as_it_begins_leaves_the_end_to_the_script(tmp_path: Path) -> None:
    library = tmp_path / "dies.so"
    command = [*compiler(), "-shared", "-fPIC", "-x", "c", "-o", str(library), "-"]
    subprocess.run(command, input=DIES, text=True, check=True)
    done = play(tmp_path / "run", preload=str(library))
    assert (tmp_path / "run/once").exists()
    assert done.returncode in {127, 128 + signal.SIGTERM}  # bash 5.2 does not know any more what has ended it
    assert done.stdout.count("== seconds and share of each part") == 1
    assert "packages" in told(done)
