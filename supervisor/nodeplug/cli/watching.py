"""`nodeplug status --watch`, and whether the daemon is where this command runs.

Owns: when to ask the daemon again, and what is on the screen until then; where a process runs.
Refuses: to end when there is no answer: an admin wants to see the daemon come back.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from nodeplug.cli import tables
from nodeplug.commands import show
from nodeplug.contract.errors import PluginError

NOT_READY: Final = 3
"""The exit status when the daemon says that it is not ready; 1 is for no answer, 2 for wrong usage."""


def verdict(answer: Mapping[str, Any]) -> int:
    """Return the exit status for an answer."""
    return 0 if answer["ready"] else NOT_READY


def is_here(pid: int) -> bool:
    """Whether a process has the mounts of this one, as all of a container have (mount_namespaces(7))."""
    try:
        return Path(f"/proc/{pid}/ns/mnt").stat().st_ino == Path("/proc/self/ns/mnt").stat().st_ino
    except OSError:  # it has ended, or is in another process namespace
        return False


def watch(ask: Callable[[], Mapping[str, Any]], seconds: float, *, as_json: bool) -> int:
    """Ask repeatedly until interrupted; return the exit status of the last answer.

    A terminal is redrawn; in a pipe the answers follow each other, as JSON one per line.
    """
    if sys.stdout.isatty() and not as_json:
        with Live(console=Console(), screen=True, auto_refresh=False) as live:
            return _repeat(ask, seconds, lambda _, shown: live.update(_headed(shown, seconds), refresh=True))
    if as_json:
        return _repeat(ask, seconds, lambda answer, _: print(json.dumps(answer, ensure_ascii=False)))
    return _repeat(ask, seconds, lambda _, shown: show(shown))


def _repeat(
    ask: Callable[[], Mapping[str, Any]], seconds: float, tell: Callable[[Mapping[str, Any], RenderableType], None]
) -> int:
    status = 1
    try:
        while True:
            try:
                answer = ask()
            except PluginError as error:
                status = 1
                tell({"error": str(error)}, Text(f"error: {error}", "red"))
            else:
                status = verdict(answer)
                tell(answer, tables.status(answer))
            sys.stdout.flush()
            time.sleep(seconds)
    except KeyboardInterrupt:
        return status


def _headed(shown: RenderableType, seconds: float) -> RenderableType:
    return Group(Text(f"{time.strftime('%H:%M:%S')}, every {seconds:g} s; Ctrl-C ends it", "dim"), shown)
