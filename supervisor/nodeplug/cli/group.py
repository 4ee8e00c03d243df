"""What every command goes through.

Owns: the commands that plugins bring, and what becomes of an error: a sentence on stderr, and exit status 1.
Refuses: the commands themselves.
"""

import sys
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from nodeplug.commands import GROUP
from nodeplug.contract.errors import PluginError


class Commands(TyperGroup):
    """Adds the commands of plugins, and turns an error that is a sentence into that sentence and exit status 1."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, ours first."""
        own = super().list_commands(ctx)
        return [*own, *sorted({point.name for point in entry_points(group=GROUP)} - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the command of a name, ours or a plugin's, or None."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:  # of two commands with one name ours is meant, and nothing of plugins is looked for
            return _without_types_of_flags(own, ctx)
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        if found is None:
            return None
        brought = _brought(found)
        brought.rich_help_panel = "Of plugins"
        return _without_types_of_flags(brought, ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the command line itself."""
        return _flags_alone(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was asked for."""
        try:
            return super().invoke(ctx)
        except PluginError as error:
            for line in getattr(error, "problems", None) or [str(error)]:
                say(f"error: {line}")
            raise typer.Exit(1) from error


def _without_types_of_flags(command: Any, ctx: Any) -> Any:
    _flags_alone(command.get_params(ctx))
    return command


def _flags_alone(params: list[Any]) -> list[Any]:
    """Let a help show a flag without a value: `--json <bool>`, as typer has it, is not what one may type."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


def _brought(point: EntryPoint) -> Any:
    """Load a command that a plugin brings; one that cannot be loaded says so when it is called, not in every help."""
    try:
        return typer.main.get_command(point.load())
    except (Exception, SystemExit) as error:
        reason = f"the command {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        broken = typer.Typer(add_completion=False)

        @broken.command(point.name, help=f"Unusable: {reason}")
        def refuse() -> None:
            raise PluginError(reason)

        return typer.main.get_command(broken)


def say(text: str) -> None:
    """Print for people, beside the answer."""
    print(text, file=sys.stderr)


def read_file(path: Path) -> bytes:
    """Read a file that the command line names.

    Raises:
        PluginError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(f"cannot read {path}: {error.strerror}") from error
