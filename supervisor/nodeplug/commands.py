"""For commands that plugins bring: an entry point in the group `nodeplug.commands` becomes `nodeplug NAME`.

    [project.entry-points."nodeplug.commands"]
    fuse = "nodeplug_fuse.command:app"          # a typer.Typer

`nodeplug --help` imports the module of every such command, so import what the command needs inside it. The names of
nodeplug's own commands cannot be replaced.

Owns: the options that all commands on a node share, asking the running daemon, printing for people and programs.
Refuses: the commands themselves.
"""

import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from nodeplug import serving
from nodeplug.contract.errors import NotReady

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

DEFAULT: Final = serving.DEFAULT
GROUP: Final = "nodeplug.commands"
_PIPE_WIDTH: Final = 240

Config = Annotated[Path, typer.Option("--config", metavar="FILE", help="The main configuration file.")]
Root = Annotated[
    Path | None,
    typer.Option("--root", metavar="DIR", help="Put every path of the configuration below DIR.", show_default=False),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
SecretsFile = Annotated[
    Path | None,
    typer.Option(
        "--secrets",
        metavar="FILE",
        help="The Secret of a volume: a JSON object, or lines KEY=VALUE. It is never printed.",
        show_default=False,
    ),
]


def inspect(plugin: str, config: Path = DEFAULT, root: Path | None = None) -> Mapping[str, Any]:
    """Ask the running daemon what a plugin reports about itself (its hook `inspect`).

    Args:
        plugin: a section's name, or the name of a plugin that sections use.
        config: the main configuration file.
        root: the value of `--root`.

    Returns:
        What each section with that name or plugin reports, by section name.

    Raises:
        NotReady: no daemon runs.
        PluginError: the plugin is not enabled, does not run, has nothing to report, or failed; the message says which.
    """
    return ask_daemon(config, root, "inspect", plugin)


def ask_daemon(
    config: Path, root: Path | None, *request: str, warn: bool = True, patience: float | None = None
) -> dict[str, Any]:
    """Send a request to the running daemon, even if its configuration has errors by now.

    Args:
        config: the main configuration file.
        root: the value of `--root`.
        request: the words of the request, such as "status".
        warn: warn on stderr if the configuration has errors.
        patience: seconds to wait for the answer, where a request takes longer than a look.

    Raises:
        ConfigError: no daemon runs where a configuration with errors seems to put it.
        NotReady: no daemon runs.
        PluginError: the daemon refused.
    """
    from nodeplug.config import ConfigError, read
    from nodeplug.exec.client import TIMEOUT, ask

    reading = read(config, root)
    try:
        socket = reading.configuration.supervisor.paths.exec_socket
        answer = ask(socket, *request, timeout=TIMEOUT if patience is None else patience)
    except NotReady as error:
        if reading.mistakes:
            raise ConfigError([*reading.mistakes, str(error)]) from error
        raise
    if reading.mistakes and warn:
        print("warning: the configuration has mistakes; `nodeplug check-config` tells them", file=sys.stderr)
    return answer


def console() -> "Console":
    """Return the console for people. A pipe has no width, and rich would wrap at 80 columns what `grep` looks for."""
    from rich.console import Console  # the daemon is a command too, and never prints a table

    return Console(width=None if sys.stdout.isatty() else _PIPE_WIDTH, highlight=False)


def show(renderable: "RenderableType") -> None:
    """Print for people."""
    console().print(renderable)


def print_json(value: object) -> None:
    """Print for programs."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def toml(document: Mapping[str, Any]) -> str:
    """Write a document as TOML; None is omitted, because TOML has no null."""
    import tomli_w

    return tomli_w.dumps(_without_none(document))


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(inner) for key, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value if inner is not None] if isinstance(value, list | tuple) else value


def show_names_as_they_are() -> None:
    """Print names from the kernel and from callers even if they are not UTF-8, by escaping them as JSON does."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
