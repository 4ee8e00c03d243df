"""A plugin for the benchmark that times every turn of the daemon's event loop."""

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from nodeplug import Claim, Host, hookimpl

LONGEST: Final = "longest"
RESET: Final = "reset"


class Loop:
    """Writes the seconds of the longest step since `reset` was made into the file `longest`, several times a second."""

    def __init__(self, config: dict[str, object], host: Host) -> None:
        del config
        self._folder = host.run_dir
        self._longest = 0.0
        self._ended = threading.Event()
        self._run = asyncio.events.Handle._run  # noqa: SLF001 - there is no public place to time a callback

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim nothing."""
        return []

    @hookimpl
    def start(self) -> None:
        """Time every callback from now on."""

        def timed(handle: Any) -> None:
            started = time.perf_counter()
            self._run(handle)
            self._longest = max(self._longest, time.perf_counter() - started)

        setattr(asyncio.events.Handle, "_run", timed)  # noqa: B010 - mypy knows the method as final
        threading.Thread(target=self._tell, name="bench:loop", daemon=True).start()

    @hookimpl
    def stop(self) -> None:
        """End the thread."""
        self._ended.set()

    def _tell(self) -> None:
        while not self._ended.wait(0.1):
            reset = self._folder / RESET
            if reset.exists():
                reset.unlink()
                self._longest = 0.0
            fresh = self._folder / f"{LONGEST}.new"
            fresh.write_text(repr(self._longest))
            fresh.replace(self._folder / LONGEST)  # who reads meanwhile finds the former one, whole


def reset(folder: Path) -> None:
    """Let the plugin count from now on.

    Args:
        folder: the plugin's own, below the daemon's run folder.
    """
    (folder / RESET).touch()
    _wait(lambda: not (folder / RESET).exists(), "the plugin has not begun anew")


def longest(folder: Path) -> float:
    """Return the seconds of the longest step since `reset`, as they are now and not at the last writing."""
    file = folder / LONGEST
    file.unlink(missing_ok=True)
    _wait(lambda: file.exists() and float(file.read_text()) > 0, "the plugin sees no step of the daemon's loop")
    return float(file.read_text())


def _wait(happened: Callable[[], bool], otherwise: str) -> None:
    # Imported here: the daemon loads this module as well, and none of those who act out its callers.
    from nodeplug.testing.waiting import until  # noqa: PLC0415

    until(happened, found=lambda: otherwise)
