"""The command line.

Owns: the list of commands and its order. Exit statuses: 0 success, 1 an error, explained on stderr, 2 wrong usage; a
command with other ones documents them in its help.
Refuses: to do anything itself. Commands import what they need when they run, so that `--help` and `version` are fast.
"""

import logging
from collections.abc import Callable
from typing import Annotated, Final

import typer

from nodeplug.cli import asking, authoring, cluster, csi, dra, environments, installing, migrating, serving
from nodeplug.cli.group import Commands
from nodeplug.commands import show_names_as_they_are

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
    help="One daemon per Kubernetes node that hosts Python plugins: devices, CNI networks, FlexVolume drivers.",
    epilog="`nodeplug demo` shows it all at once. `nodeplug new device NAME` begins a plugin of your own. "
    "`nodeplug COMMAND --help` has an example of each command; `man nodeplug` has them all.",
)


def main() -> None:
    """Run the command line."""
    show_names_as_they_are()
    app(prog_name="nodeplug")


def _tell_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def _begin(
    _version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_tell_version, help="Print the version and exit.")
    ] = False,
) -> None:
    # Commands print their errors; only `serve` sets up a log. Without this handler errors would appear twice.
    logging.getLogger("nodeplug").addHandler(logging.NullHandler())


def version() -> None:
    """Print the version.

    Example: `nodeplug version`
    """
    from nodeplug.release import own_version

    print(f"nodeplug {own_version()}")


_COMMANDS: Final[dict[str, dict[str, Callable[..., None] | typer.Typer]]] = {
    "To run a node": {
        "serve": serving.serve,
        "check-config": asking.check_config,
        "plugins": environments.app,
        "status": asking.status,
        "inspect": asking.inspect,
        "reload": serving.reload,
        "replace": serving.replace,
        "csi": csi.app,
        "dra": dra.app,
        "cluster": cluster.app,
        "migrate": migrating.app,
        "install": installing.install,
        "uninstall": installing.uninstall,
        "version": version,
    },
    "To try it, and to write plugins": {
        "demo": authoring.demo,
        "new": authoring.new,
        "try": authoring.try_,
        "verify": authoring.verify,
    },
}
Commands.order = [name for commands in _COMMANDS.values() for name in commands]
for _panel, _commands in _COMMANDS.items():
    for _name, _command in _commands.items():
        if isinstance(_command, typer.Typer):
            app.add_typer(_command, name=_name, rich_help_panel=_panel)
        else:
            app.command(name=_name, rich_help_panel=_panel)(_command)
