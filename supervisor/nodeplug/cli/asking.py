"""What is, and what would be: `check-config`, `plugins`, `status`, `inspect`.

Owns: the options and exit statuses of these commands.
Refuses: to change anything.
"""

from typing import Annotated

import typer

from nodeplug.cli.group import say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show
from nodeplug.errors import NotReady


def check_config(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """Print the effective configuration, defaults included, or every mistake with its file and key.

    Nothing is started or written. The exit status is 1 when there is a mistake.

    Example: `nodeplug check-config --config ./nodeplug.toml`
    """
    from nodeplug.config import load
    from nodeplug.effective import effective, refusals
    from nodeplug.install.deployment import inspect

    configuration = load(config, root)
    problems = refusals(inspect(configuration), config)
    document = effective(configuration)
    if as_json:
        print_json({"configuration": document, "problems": problems})
    elif not problems:
        from nodeplug.tables import toml

        print(toml(document), end="")
    for problem in problems:
        say(f"error: {problem}")
    raise typer.Exit(1 if problems else 0)


def plugins(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """List the plugins: what they claim, how they are, and why one is refused.

    Asks the running daemon; without one, says what the configuration would load.

    Example: `nodeplug plugins --json | jq -r '.plugins[].claims[]'`
    """
    from nodeplug import tables
    from nodeplug.config import load
    from nodeplug.control import ask
    from nodeplug.effective import rows_of
    from nodeplug.install.deployment import inspect
    from nodeplug.registry import installed

    configuration = load(config, root)
    source = "daemon"
    try:
        rows = ask(configuration.supervisor.paths.exec_socket, "status")["plugins"]
    except NotReady as error:
        source = "configuration"
        say(f"{error}\nThis is what the configuration would load:")
        rows = rows_of(inspect(configuration))
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
        bool, typer.Option("--watch", "-w", help="Ask again until Ctrl-C; with --json, one object per line.")
    ] = False,
    interval: Annotated[
        float, typer.Option("--interval", metavar="SECONDS", min=0.1, help="The pause between two answers of --watch.")
    ] = 2.0,
) -> None:
    """Show what the running daemon does: plugins, devices, networks, volumes, calls.

    The exit status is 0 when the node is ready, 3 when the daemon says that it is not (as `/readyz` does), and 1 when
    no daemon answers. With --watch it is that of the last answer.

    Example: `nodeplug status --json | jq '.calls[] | select(.overdue)'`
    """
    from nodeplug import tables
    from nodeplug.cli import watching
    from nodeplug.config import load
    from nodeplug.control import ask

    socket = load(config, root).supervisor.paths.exec_socket
    if watch:
        raise typer.Exit(watching.watch(lambda: ask(socket, "status"), interval, as_json=as_json))
    answer = ask(socket, "status")
    if as_json:
        print_json(answer)
    else:
        show(tables.status(answer))
    raise typer.Exit(watching.verdict(answer))


def inspect(
    plugin: Annotated[str, typer.Argument(metavar="NAME", help="A section's name, or the plugin that sections use.")],
    config: Config = DEFAULT,
    root: Root = None,
) -> None:
    """Print what a plugin tells about itself, as JSON by section name.

    Plugins that have more to show bring a command of their own.

    Example: `nodeplug inspect gpu | jq '.[].cards'`
    """
    from nodeplug.commands import inspect as ask_plugin

    print_json(ask_plugin(plugin, config, root))
