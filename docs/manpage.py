# ruff: noqa: INP001 - a script's other half, not a package
"""The manual page nodeplug(1), from the help of the command line.

Owns: the roff of it. What a command says about itself stands in its help and nowhere else.
"""

import re
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Final

import typer

from nodeplug.cli import app
from nodeplug.commands import GROUP
from nodeplug.config import Supervisor

PLACE: Final = "man/nodeplug.1"
_PROJECT: Final = Path(__file__).resolve().parents[1] / "pyproject.toml"


def page() -> str:
    """Return the whole page."""
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="nodeplug")
    foreign = {point.name for point in entry_points(group=GROUP) if point.dist is None or point.dist.name != "nodeplug"}
    names = [name for name in root.list_commands(context) if name not in foreign]
    commands = [line for name in names for line in _commands(root.get_command(context, name), context)]
    about = tomllib.loads(_PROJECT.read_text(encoding="utf-8"))["project"]
    lines = [
        f'.TH NODEPLUG 1 "" "nodeplug {about["version"]}" "nodeplug"',
        ".nh",  # a path or an option that is broken by a hyphen can be copied wrongly
        ".ad l",  # a long path would leave holes in the line before it
        ".SH NAME",
        f"nodeplug {chr(92)}- {_roff(root.help.rstrip('.'))}",
        ".SH SYNOPSIS",
        ".B nodeplug",
        r"[\fIOPTIONS\fR] \fICOMMAND\fR [\fIARGUMENTS\fR]",
        ".SH OPTIONS",
        *_options(root, context),
        *_terms([("-h, --help", "Show the help, of nodeplug or of one command, and exit.")]),
        ".SH COMMANDS",
        *commands,
        ".SH EXIT STATUS",
        *_terms(
            [
                ("0", "done"),
                ("1", "an error, told in a sentence on stderr"),
                ("2", "wrong usage"),
                ("3", "what the help of a command says, such as: the node is not ready"),
            ]
        ),
        ".SH FILES",
        *_files(),
        ".SH SEE ALSO",
        ".BR systemctl (1),",
        ".BR journalctl (1)",
    ]
    return "\n".join(lines) + "\n"


def _commands(command: Any, root: Any) -> Iterator[str]:
    """Describe a command, and those below it."""
    yield from _command(command, root, command.name)
    context = typer.Context(command, info_name=command.name, parent=root)
    for name in getattr(command, "commands", {}):
        yield from _command(command.get_command(context, name), context, f"{command.name} {name}")


def _command(command: Any, root: Any, path: str) -> Iterator[str]:
    context = typer.Context(command, info_name=command.name, parent=root)
    yield f'.SS "nodeplug {path} {_roff(" ".join(command.collect_usage_pieces(context)))}"'
    for number, paragraph in enumerate(str(command.help or "").split("\n\n")):
        if number:
            yield ".PP"
        yield _roff(" ".join(paragraph.split()))
    yield from _options(command, context)


def _options(command: Any, context: Any) -> Iterator[str]:
    records = [param.get_help_record(context) for param in command.get_params(context) if param.name != "help"]
    yield from _terms([record for record in records if record is not None])


def _terms(pairs: list[tuple[str, str]]) -> Iterator[str]:
    for term, text in pairs:
        yield ".TP"
        yield rf"\fB{_roff(' '.join(term.split()))}\fR"
        yield _roff(" ".join(text.split()))


def _files() -> Iterator[str]:
    paths = Supervisor().paths
    yield from _terms(
        [
            (
                "/etc/nodeplug/nodeplug.toml",
                "the configuration; /etc/nodeplug/plugins.d/*.toml beside it, one per plugin",
            ),
            (str(paths.exec_socket), "where the daemon listens for its entrypoints and for this command"),
            (str(paths.state), "what the daemon must remember: the journal, deferred DELs"),
        ]
    )


def _roff(text: str) -> str:
    """Escape a text for roff; what stands in backticks becomes bold."""
    text = text.replace("\\", r"\e").replace("-", r"\-")
    text = re.sub(r"`([^`]*)`", r"\\fB\1\\fR", text)
    return rf"\&{text}" if text.startswith((".", "'")) else text
