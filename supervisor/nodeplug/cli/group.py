"""What all commands have in common.

Owns: commands that plugins provide, and turning an error into a sentence on stderr and exit status 1.
Refuses: the commands themselves.
"""

import sys
from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer.core import TyperGroup

from nodeplug.commands import GROUP
from nodeplug.contract.errors import PluginError


class Commands(TyperGroup):
    """Adds the commands of plugins, and handles errors.

    Attributes:
        order: of our own commands.
    """

    order: ClassVar[Sequence[str]] = ()

    def list_commands(self, ctx: Any) -> list[str]:
        """Return all command names, ours first."""
        own = sorted(super().list_commands(ctx), key=self.order.index)
        return [*own, *sorted({point.name for point in entry_points(group=GROUP)} - set(own))]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, ours or a plugin's, or None."""
        own = super().get_command(ctx, cmd_name)
        if own is not None:  # ours wins over a plugin's, and then no plugin command is looked up
            return _without_types_of_flags(own, ctx)
        found = next(iter(entry_points(group=GROUP, name=cmd_name)), None)
        if found is None:
            return None
        brought = _brought(found)
        brought.name = cmd_name  # one with commands below it has no name of its own
        brought.rich_help_panel = "Of plugins"
        return _without_types_of_flags(brought, ctx)

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of the program itself."""
        return _flags_alone(super().get_params(ctx))

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except PluginError as error:
            explain(error)
            raise typer.Exit(1) from error


class Subcommands(TyperGroup):
    """Commands below a command."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a command, or None."""
        found = super().get_command(ctx, cmd_name)
        return None if found is None else _without_types_of_flags(found, ctx)


def _without_types_of_flags(command: Any, ctx: Any) -> Any:
    _flags_alone(command.get_params(ctx))
    return command


def _flags_alone(params: list[Any]) -> list[Any]:
    """Show flags without a value in help: typer would show `--json <bool>`, which is not valid input."""
    for param in params:
        if getattr(param, "is_flag", False) and param.metavar is None:
            param.metavar = ""
    return params


def _brought(point: EntryPoint) -> Any:
    """Load a plugin's command; if that fails, the error appears when it is called, not in every help."""
    try:
        return typer.main.get_command(point.load())
    except (Exception, SystemExit) as error:
        reason = f"the command {point.name!r} ({point.value}) cannot be loaded: {type(error).__name__}: {error}"
        broken = typer.Typer(add_completion=False)

        @broken.command(point.name, help=f"Unusable: {reason}")
        def refuse() -> None:
            raise PluginError(reason)

        return typer.main.get_command(broken)


def explain(error: PluginError) -> None:
    """Print what is wrong, each problem on a line of its own."""
    for line in getattr(error, "problems", None) or [str(error)]:
        say(f"error: {line}")


def say(text: str) -> None:
    """Print for people, on stderr."""
    print(text, file=sys.stderr)


def read_file(path: Path) -> bytes:
    """Read a file named on the command line, or raise PluginError."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(f"cannot read {path}: {error.strerror}") from error
