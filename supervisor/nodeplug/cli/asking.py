"""The commands that only read: `check-config`, `plugins`, `status`, `inspect`.

Owns: their options and exit statuses.
Refuses: to change anything.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from nodeplug.cli.group import say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show, toml
from nodeplug.contract.errors import NotReady


def check_config(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    node_labels: Annotated[
        str | None,
        typer.Option(
            "--node-labels",
            metavar="LABELS",
            help="For a node with these labels, as in `gpu=t4,zone=a`, in place of this one's.",
            show_default=False,
        ),
    ] = None,
    node_name: Annotated[
        str | None,
        typer.Option("--node-name", metavar="NAME", help="For a node of this name.", show_default=False),
    ] = None,
) -> None:
    """Print the effective configuration, defaults included, or every mistake with its file, line and key.

    The last line counts what is enabled. Nothing is started or written. The exit status is 1 when there is a mistake.
    Sections with a `node_selector` or `node_names` are those of this node, unless another one is described.

    Example: `nodeplug check-config --config ./nodeplug.toml`
    """
    from nodeplug.cli.effective import examine
    from nodeplug.config import read
    from nodeplug.config.selection import Node, parse_labels

    node = None
    if node_labels is not None or node_name is not None:
        node = Node(node_name or "", parse_labels(node_labels) if node_labels is not None else None)
    examined = examine(read(config, root, node=node))
    if as_json:
        told = {"configuration": examined.document, "problems": examined.problems}
        print_json({**told, "elsewhere": examined.elsewhere} if examined.elsewhere else told)
    elif not examined.problems:
        print(f"{toml(examined.document)}\n# ok: {examined.summary}")
    for problem in examined.problems:
        say(f"error: {problem}")
    raise typer.Exit(1 if examined.problems else 0)


def plugins(config: Path, root: Path | None, as_json: bool) -> None:
    """List the plugins, from the running daemon or, without one, from the configuration."""
    from nodeplug.cli import tables
    from nodeplug.cli.effective import rows_of
    from nodeplug.commands import ask_daemon
    from nodeplug.config import read
    from nodeplug.loading.discovery import installed

    source = "daemon"
    try:
        rows = ask_daemon(config, root, "status")["plugins"]
    except NotReady as error:
        source = "configuration"
        say(f"{error}\nThis is what the configuration would load:")
        rows = rows_of(read(config, root))
    names = sorted(installed().keys() - {row["uses"] for row in rows})
    if as_json:
        print_json({"source": source, "plugins": rows, "available": names})
        return
    show(tables.plugins(rows))
    show(tables.available(names))


def status(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Refresh until Ctrl-C; with --json, one object per line.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="The pause between two answers of --watch.")
    ] = 2.0,
    here: Annotated[
        bool,
        typer.Option(
            "--here",
            help="Print nothing; the exit status is 0 if the daemon runs in this container, and 3 if in another. "
            "For the startup probe of a pod that has to take the place of another one.",
        ),
    ] = False,
) -> None:
    """Show what the running daemon does: plugins, devices, networks, volumes, calls.

    The exit status is 0 when the node is ready, 3 when the daemon says that it is not (as `/readyz` does), and 1 when
    no daemon answers. With --watch it is that of the last answer.

    Example: `nodeplug status --json | jq '.calls[] | select(.overdue)'`
    """
    from nodeplug.cli import tables, watching
    from nodeplug.commands import ask_daemon

    if watch:
        ask = partial(ask_daemon, config, root, "status", warn=False)
        raise typer.Exit(watching.watch(ask, interval, as_json=as_json))
    answer = ask_daemon(config, root, "status", warn=not here)
    if here:
        raise typer.Exit(0 if watching.is_here(answer["pid"]) else watching.NOT_READY)
    if as_json:
        print_json(answer)
    else:
        show(tables.status(answer))
    raise typer.Exit(watching.verdict(answer))


def inspect(
    plugin: Annotated[
        str, typer.Argument(metavar="NAME", help="The NAME of a `[plugins.NAME]` table, or the plugin that tables use.")
    ],
    config: Config = DEFAULT,
    root: Root = None,
) -> None:
    """Print what a plugin tells about itself, as JSON by the name of its table.

    Asks the running daemon, and needs root. Plugins that have more to show bring a command of their own.

    Example: `nodeplug inspect gpu | jq '.[].cards'`
    """
    from nodeplug.commands import inspect as ask_plugin

    print_json(ask_plugin(plugin, config, root))
