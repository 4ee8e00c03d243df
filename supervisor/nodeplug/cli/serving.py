"""`nodeplug serve`.

Owns: what is set before the daemon starts, and how the process ends.
Refuses: the daemon itself.
"""

import gc
import logging
import os
import sys
import threading

import typer

from nodeplug.commands import DEFAULT, Config, Root


def serve(config: Config = DEFAULT, root: Root = None) -> None:
    """Run the daemon in the foreground.

    SIGTERM ends it, SIGHUP reads the configuration again (it also does so by itself when a file changes).

    Example: `nodeplug serve --root /tmp/node --config ./nodeplug.toml`
    """
    # gRPC's C core bypasses our log and writes to stderr, in its own format, what our log already says.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.disable()  # imports leave little garbage, and collecting it would take an eighth of the startup time
    from nodeplug.daemon import serve as run

    gc.enable()
    status = run(config, root)
    _leave_threads_behind(status)
    raise typer.Exit(status)


def _leave_threads_behind(status: int) -> None:
    """Exit at once if a plugin left a thread that the interpreter would wait for forever."""
    main = threading.main_thread()
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not main]
    if left:
        logging.getLogger("nodeplug").warning("ending with threads that plugins left running: %s", ", ".join(left))
        sys.stdout.flush()
        os._exit(status)  # noqa: TID251 - sys.exit would join those threads
