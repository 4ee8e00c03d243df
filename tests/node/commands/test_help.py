"""What the command line teaches: help, completion, version, wrong usage."""

import os
import subprocess
import sys

import pytest

from nodeplug.testing import forked

pytestmark = pytest.mark.unprivileged


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return forked.run("nodeplug", arguments, os.environ)


COMMANDS = ("serve", "check-config", "plugins", "status", "install", "uninstall", "demo", "version")


@pytest.mark.parametrize(
    "command",
    [one if one in {"serve", "install", "version"} else pytest.param(one, marks=pytest.mark.whole) for one in COMMANDS],
)
def test_help_of_each_command_teaches_by_an_example(command: str) -> None:
    done = run(command, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert f"Example: nodeplug {command}" in " ".join(done.stdout.split())  # lines end where the terminal's do


def test_help_names_every_command() -> None:
    shown = run("--help").stdout
    assert [command for command in COMMANDS if command not in shown] == []


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\nfrom nodeplug.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print({'grpc', 'pyroute2', 'pydantic', 'prometheus_client'} & sys.modules.keys(), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()\n"


@pytest.mark.parametrize("form", ["version", "--version"])
def test_version_is_printed(form: str) -> None:
    done = subprocess.run([sys.executable, "-m", "nodeplug", form], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "nodeplug 0.1.0\n", "")


@pytest.mark.parametrize(
    ("typed", "completed"),
    [("nodeplug st", ["status"]), ("nodeplug status --wa", ["--watch"]), ("nodeplug gp", ["gpu"])],
)
def test_a_shell_completes_commands_and_options(typed: str, completed: list[str]) -> None:
    asked = {"_NODEPLUG_COMPLETE": "complete_bash", "COMP_WORDS": typed, "COMP_CWORD": str(typed.count(" "))}
    done = forked.run("nodeplug", [], {**os.environ, **asked})
    assert (done.stdout.split(), done.stderr) == (completed, "")


def test_the_completion_of_a_shell_can_be_shown() -> None:
    shown = subprocess.run(
        ["/bin/bash", "-c", f"{sys.executable} -m nodeplug --show-completion; :"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "complete -o default -F _nodeplug_completion nodeplug" in shown.stdout, shown.stderr


def test_wrong_usage_is_status_2() -> None:
    assert run("status", "--nonsense").returncode == 2
