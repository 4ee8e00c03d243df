"""The process that the daemon is: from the words of its command line to its exit status.

Owns: what is set before the daemon starts, the order of what is imported, and how the process ends.
Refuses: the daemon itself, and help: words that are not plainly understood are the command line's, which explains them.

The command line costs a third of the time from the execution to the first list of devices, and kubelet waits for it
after a crash. So nothing is imported here before it is needed.
"""

import gc
import logging
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from nodeplug.device.resources import Resources
    from nodeplug.first_lists import NextStart

DEFAULT: Final = Path("/etc/nodeplug/nodeplug.toml")
"""The main configuration file, unless another one is named."""
_FLAG: Final = "--take-over"
_OPTIONS: Final[Mapping[str, "Callable[[str], Any]"]] = {"--config": Path, "--root": Path, "--succeed": int}


def plain_words(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Read `serve` and its options, each with its value; None for all that the command line should look at.

    Args:
        arguments: of the program, without its name.

    Returns:
        The arguments of `serve()`.
    """
    if not arguments or arguments[0] != "serve":
        return None
    words = [part for word in arguments[1:] for part in (word.split("=", 1) if word.startswith("--") else (word,))]
    flags = [at for at, word in enumerate(words) if word == _FLAG]
    if any((at - before) % 2 for before, at in enumerate(flags)):
        return None  # it stands where a value does
    words = [word for word in words if word != _FLAG]
    names, values = words[::2], words[1::2]
    if len(names) != len(values) or any(not one or one.startswith("-") for one in values):
        return None
    try:
        read = {name.removeprefix("--"): _OPTIONS[name](value) for name, value in zip(names, values, strict=True)}
    except (KeyError, ValueError):
        return None
    return read | ({"take_over": True} if flags else {})


def serve(
    config: Path = DEFAULT, root: Path | None = None, succeed: int | None = None, *, take_over: bool = False
) -> int:
    """Run the daemon until it is told to end; return the exit status.

    Args:
        config: the main configuration file.
        root: the value of `--root`.
        succeed: the descriptor of the socket to a daemon whose place is to be taken.
        take_over: take the place of whatever daemon serves, and stand by when another one has taken this one's.

    Raises:
        ConfigError: the configuration cannot be used.
        PluginError: another daemon is already running, a folder cannot be made, or the predecessor keeps the node.
    """
    # Whoever started the process prints what ends it; without this handler errors would appear twice.
    logging.getLogger("nodeplug").addHandler(logging.NullHandler())
    # gRPC's C core bypasses our log and writes to stderr, in its own format, what our log already says.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    gc.disable()  # imports leave little garbage, and collecting it would take an eighth of the startup time
    import asyncio

    from nodeplug.first_lists import find
    from nodeplug.process.turns import TurnLoop

    if take_over and succeed is None:
        succeed = _place(config, root)
    note = find(config, root) if succeed is None else None  # the predecessor serves, until it hands over
    with asyncio.Runner(loop_factory=TurnLoop) as runner:
        status = runner.run(_serve(config, root, note, succeed, take_over))
    _leave_threads_behind(status)
    return status


def _place(config: Path, root: Path | None) -> int | None:
    """Ask the daemon that serves for its place; return the descriptor of the socket to it, or None if there is none."""
    from nodeplug.config import read
    from nodeplug.exec.client import ask_for_place

    return ask_for_place(read(config, root).configuration.supervisor.paths.exec_socket)


async def _serve(
    config: Path, root: Path | None, note: "NextStart | None", succeed: int | None, take_over: bool
) -> int:
    """Serve what kubelet was told last, import the daemon meanwhile, and run it."""
    from nodeplug.first_lists import begin
    from nodeplug.process.aside import aside

    first = await begin(note) if note is not None else None
    run = await aside(_import_daemon, "import the daemon")
    gc.enable()
    return await run(config, root, first, succeed, take_over)


def _import_daemon() -> "Callable[[Path, Path | None, Resources | None, int | None, bool], Awaitable[int]]":
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
