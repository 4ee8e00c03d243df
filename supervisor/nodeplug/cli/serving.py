"""The commands `serve`, `reload` and `replace`.

Owns: their options, and what is printed of what was renewed.
Refuses: the process of the daemon (`nodeplug.serving`).
"""

from typing import Annotated, Final

import typer

from nodeplug import serving
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show
from nodeplug.contract.errors import TryAgain

RELOAD_PATIENCE: Final = 300.0
"""Seconds: to load, prepare and start a plugin, and for the calls inside the one before to end."""
REPLACE_PATIENCE: Final = 300.0
"""Seconds: for a successor to get ready, for calls to end, and for its start."""


def serve(
    config: Config = DEFAULT,
    root: Root = None,
    succeed: Annotated[int | None, typer.Option(hidden=True)] = None,
    take_over: Annotated[
        bool,
        typer.Option(
            "--take-over",
            help="Take the place of the daemon that serves this node, if one does, and stand by when another takes "
            "this one's: for a pod whose next one is started beside it.",
        ),
    ] = False,
) -> None:
    """Run the daemon in the foreground.

    SIGTERM ends it, SIGHUP reads the configuration again (it also does so by itself when a file changes).

    Example: `nodeplug serve --root /tmp/node --config ./nodeplug.toml`
    """
    raise typer.Exit(serving.serve(config, root, succeed, take_over=take_over))


def reload(
    plugin: Annotated[str, typer.Argument(metavar="NAME", help="The NAME of a `[plugins.NAME]` table.")],
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Start a plugin anew, with the code that is installed now, beside the one that serves, and exchange them.

    No call is refused meanwhile and no stream to kubelet ends. If the new one does not load or start, the exit status
    is 1 and the one before goes on. A plugin that runs as a thread keeps the code that the daemon has imported. Needs
    root.

    Example: `/opt/nodeplug/bin/pip install --upgrade acme-nodeplug && nodeplug reload acme`
    """
    from nodeplug.cli import tables
    from nodeplug.commands import ask_daemon

    rows = ask_daemon(config, root, "reload", plugin, patience=RELOAD_PATIENCE)["plugins"]
    rows = [row for row in rows if row["name"] == plugin]
    if as_json:
        print_json(rows[0])
    else:
        show(tables.plugins(rows))


def replace(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """Replace the running daemon by one with the code that is installed now. No call fails, kubelet sees no gap.

    The new one loads every plugin beside the one that serves. Then callers wait until the calls inside have ended,
    which may take up to 40 s of tries, and for the start of the plugins, some tenths of a second. If the new one cannot
    load what runs, or calls do not end, the exit status is 1 and the one before goes on. Needs root.

    Example: `/opt/nodeplug/bin/pip install --upgrade 'nodeplug[daemon]' && nodeplug replace`
    """
    from nodeplug.commands import ask_daemon

    decided = ask_daemon(config, root, "replace", patience=REPLACE_PATIENCE)
    after = ask_daemon(config, root, "status", patience=REPLACE_PATIENCE, warn=False)
    if after["pid"] != decided["successor"]:
        raise TryAgain(f"process {decided['successor']} was to take over, and {after['pid']} serves; see the log")
    if as_json:
        print_json(decided | {"version": after["version"]})
    else:
        print(f"process {decided['successor']} serves instead of {decided['pid']}, version {after['version']}")
