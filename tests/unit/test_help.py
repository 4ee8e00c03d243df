"""What the help of each command looks like in a terminal of 80 columns, to somebody who has never seen it."""

import re
from functools import cache
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from nodeplug.cli import app

ROOT: Any = typer.main.get_command(app)
CONTEXT = typer.Context(ROOT, info_name="nodeplug")
NAMES = [
    *ROOT.list_commands(CONTEXT),
    "plugins add",
    "plugins remove",
    "csi manifests",
    "csi status",
    "dra manifests",
    "migrate flex-to-csi",
]


def named(name: str) -> Any:
    """Return a command, or one below a command."""
    found, context = ROOT, CONTEXT
    for part in name.split():
        found = found.get_command(context, part)
        context = typer.Context(found, info_name=part, parent=context)
    return found


@cache
def shown(*arguments: str) -> str:
    done = CliRunner().invoke(app, [*arguments, "--help"], prog_name="nodeplug", env={"COLUMNS": "80", "TERM": "dumb"})
    assert done.exit_code == 0
    return done.stdout


def words(text: str) -> list[str]:
    return re.sub(r"[│╭╮╰╯─]", " ", text.replace("`", "")).split()


def missing(texts: list[str], command: str) -> list[str]:
    seen = set(words(shown(*command.split())))
    return [word for text in texts for word in words(text) if word not in seen]


@pytest.mark.parametrize("name", NAMES)
def test_no_word_of_a_help_is_broken(name: str) -> None:
    command = named(name)
    params = command.get_params(CONTEXT)
    texts = [command.help, *(param.help or "" for param in params), *(param.metavar or "" for param in params)]
    assert missing(texts, name) == []


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_cut_off_and_no_line_is_wider_than_the_terminal(name: str) -> None:
    lines = shown(*name.split()).splitlines()
    assert [line for line in lines if "…" in line or len(line) > 80] == []


@pytest.mark.parametrize("name", ["", *NAMES])
def test_a_flag_does_not_look_as_if_it_took_a_value(name: str) -> None:
    assert "<bool>" not in shown(*name.split())


@pytest.mark.parametrize("name", NAMES)
def test_usage_doubles_no_dots(name: str) -> None:
    assert "...}..." not in shown(*name.split())


def test_commands_are_listed_by_what_they_are_for() -> None:
    panels = re.findall(r"╭─ (.*?) ─+╮", shown())
    assert panels == ["Options", "To run a node", "To try it, and to write plugins", "Of plugins"]


def test_the_help_says_where_to_begin() -> None:
    assert "nodeplug demo shows it all at once" in " ".join(words(shown()))


@pytest.mark.parametrize("name", NAMES)
def test_each_example_can_be_copied_as_one_line_or_from_a_paragraph_of_its_own(name: str) -> None:
    paragraphs = named(name).help.split("\n\n")
    assert [one for one in paragraphs if one.startswith("Example")] != []
    assert [one for one in paragraphs if "Examples:" in one or one.count("`nodeplug ") > 1] == []


@pytest.mark.parametrize("option", ["--network", "--conflist"])
def test_try_and_verify_call_a_network_the_same(option: str) -> None:
    assert all(option in words(shown(command).replace(",", " ")) for command in ("try", "verify"))


@pytest.mark.parametrize("name", NAMES)
def test_no_flag_is_given_unless_somebody_gives_it(name: str) -> None:
    flags = [param for param in named(name).get_params(CONTEXT) if getattr(param, "is_flag", False)]
    # `--x/--no-x` may be either; what a single name switches on is off.
    assert [flag.name for flag in flags if not flag.secondary_opts and flag.default] == []
