"""A plugin for the benchmark that times every turn of the daemon's event loop."""

import asyncio
import threading
import time
from collections.abc import Sequence
from typing import Any

from nodeplug import Claim, Host, hookimpl


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
            reset = self._folder / "reset"
            if reset.exists():
                reset.unlink()
                self._longest = 0.0
            (self._folder / "longest").write_text(repr(self._longest))
