"""The commands `serve`, `reload` and `replace`.

Owns: what is set before the daemon starts, how the process ends, and what is printed of what was renewed.
Refuses: the daemon itself.
"""

import gc
import logging
import os
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show
from nodeplug.contract.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeplug.device.resources import Resources
    from nodeplug.first_lists import NextStart

RELOAD_PATIENCE: Final = 300.0
"""Seconds: to load, prepare and start a plugin, and for the calls inside the one before to end."""
REPLACE_PATIENCE: Final = 300.0
"""Seconds: for a successor to get ready, for calls to end, and for its start."""


def serve(
    config: Config = DEFAULT,
    root: Root = None,
    succeed: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Run the daemon in the foreground.

    SIGTERM ends it, SIGHUP reads the configuration again (it also does so by itself when a file changes).

    Example: `nodeplug serve --root /tmp/node --config ./nodeplug.toml`
    """
    # gRPC's C core bypasses our log and writes to stderr, in its own format, what our log already says.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.disable()  # imports leave little garbage, and collecting it would take an eighth of the startup time
    import asyncio

    from nodeplug import first_lists

    note = first_lists.find(config, root) if succeed is None else None  # the predecessor serves, until it hands over
    status = asyncio.run(_serve(config, root, note, succeed))
    _leave_threads_behind(status)
    raise typer.Exit(status)


async def _serve(config: Path, root: Path | None, note: "NextStart | None", succeed: int | None) -> int:
    """Serve what kubelet was told last, import the daemon meanwhile, and run it."""
    from nodeplug import first_lists
    from nodeplug.process.aside import aside

    first = await first_lists.begin(note) if note is not None else None
    run = await aside(_import_daemon, "import the daemon")
    gc.enable()
    return await run(config, root, first, succeed)


def _import_daemon() -> "Callable[[Path, Path | None, Resources | None, int | None], Awaitable[int]]":
    from nodeplug.daemon import run

    return run


def _leave_threads_behind(status: int) -> None:
    """Exit at once if a plugin left a thread that the interpreter would wait for forever."""
    main = threading.main_thread()
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    if left:
        logging.getLogger("nodeplug").warning("ending with threads that plugins left running: %s", ", ".join(left))
        sys.stdout.flush()
        os._exit(status)  # noqa: TID251 - sys.exit would join those threads


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
