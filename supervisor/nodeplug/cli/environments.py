"""`nodeplug plugins`, `nodeplug plugins add` and `nodeplug plugins remove`.

Owns: their options and output; `nodeplug plugins` alone is the list of `asking`.
Refuses: to make or remove anything itself (`nodeplug.install.environments`), and to write the configuration.
"""

import sys
from dataclasses import asdict
from typing import Annotated

import typer

from nodeplug.cli import asking
from nodeplug.cli.group import Subcommands, say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, toml

app = typer.Typer(cls=Subcommands, invoke_without_command=True, add_completion=False, rich_markup_mode="markdown")


@app.callback()
def plugins(context: typer.Context, config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """List the plugins: what they claim, how they are, and why one is refused; or add and remove Python environments.

    Asks the running daemon; without one, says what the configuration would load.

    Example: `nodeplug plugins --json | jq -r '.plugins[].claims[]'`
    """
    if context.invoked_subcommand is None:
        asking.plugins(config, root, as_json)
    elif (config, root, as_json) != (DEFAULT, None, False):
        raise typer.BadParameter(f"write the options behind `{context.invoked_subcommand}`")


@app.command()
def add(
    what: Annotated[
        str, typer.Argument(metavar="PATH|NAME", help="The folder or wheel of a plugin's package, or its name.")
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="NAME", help="Of the environment.", show_default="that of the package")
    ] = "",
    python: Annotated[
        str,
        typer.Option("--python", metavar="PROGRAM", help="The Python to make it with.", show_default="the daemon's"),
    ] = "",
    find_links: Annotated[
        list[str] | None,
        typer.Option("--find-links", metavar="DIR", help="Also take packages from this folder; repeatable."),
    ] = None,
    no_index: Annotated[bool, typer.Option("--no-index", help="Ask no package index.")] = False,
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Make a Python environment for a plugin below `/opt/nodeplug-plugins`, and print the section to paste.

    pip installs the plugin there, and nodeplug of the daemon's release. Repeating it installs anew beside the
    environment in use, and exchanges the two in one step; `nodeplug reload` then takes the new code.

    Example: `nodeplug plugins add ./acme-gpu --python python3.13`

    Example: `nodeplug plugins add acme-gpu --no-index --find-links /srv/wheels`
    """
    from nodeplug.config import read
    from nodeplug.contract.plugin_class import GROUP
    from nodeplug.install.environments import PLACE, Wanted, add

    folder = read(config, root).configuration.supervisor.below_root(PLACE)
    made = add(folder, Wanted(what, name, python or sys.executable, find_links or (), no_index), GROUP)
    if as_json:
        print_json({**asdict(made), "python": str(made.python), "section": toml(made.sections)})
        return
    say(f"{made.distribution} is installed for Python {made.version}; add to the configuration:")
    print(toml(made.sections))


@app.command()
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the environment.")],
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Remove the Python environment of a plugin, unless an enabled section uses it.

    Example: `nodeplug plugins remove acme-gpu`
    """
    from nodeplug.config import load
    from nodeplug.install.environments import PLACE, remove

    configuration = load(config, root)
    folder = configuration.supervisor.below_root(PLACE)
    remove(folder, name, configuration.plugins)
    if as_json:
        print_json({"removed": str(folder / name)})
    else:
        print(f"removed {folder / name}")
