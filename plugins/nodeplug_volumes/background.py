"""Work on an image that may take longer than a call: it goes on behind the call, and the same call again finds it.

Owns: the threads, what they log of their tools meanwhile, how they ended, and their end with the plugin.
Refuses: to keep a caller waiting: it asks again. Copies are made by `copying`, which knows how far they are.

A plugin that ends leaves behind what must not be killed halfway, and one that is killed leaves all its tools. Such a
tool has the lock of the image (`filesystem.locked`) until it ends.
"""

import logging
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import PluginError, TryAgain
from nodeplug.fields import show_quantity as show
from nodeplug_volumes.filesystem import Look

PATIENCE: Final = 5.0
"""Seconds that a caller waits; a provisioner gives each call ten."""
TOLD_EVERY: Final = 10.0
_ENDS_WITHIN: Final = 5.0


@dataclass(slots=True)
class _Work:
    """What is being done with one image."""

    what: str
    began: float = field(default_factory=time.monotonic)
    told: float = field(default_factory=time.monotonic)
    at: str = ""
    goes_on: bool = False
    stopped: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    error: PluginError | None = None


@dataclass(frozen=True, slots=True)
class Background:
    """The work of one plugin; any thread."""

    log: logging.LoggerAdapter[logging.Logger]
    _running: dict[Path, _Work] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def do(self, image: Path, what: str, work: Callable[[Look], None], *, goes_on: bool = False) -> None:
        """Do something with an image, or wait for the same that is being done; return when it is done.

        Args:
            image: of which nothing else is done meanwhile.
            what: in words, such as "checking it".
            work: gets what its tools are looked at by.
            goes_on: past the end of the plugin, too: its tools change what is there, and are not to be killed halfway.

        Raises:
            TryAgain: it takes longer, or something else is being done.
            PluginError: what the work raised.
        """
        with self._changing:
            running = self._running.get(image)
            if running is not None and running.what != what and running.ended.is_set():
                running = None  # nobody asks for its end any more
            if running is None:
                running = self._running[image] = _Work(what, goes_on=goes_on)
                self._start(image, running, work)
        ended = running.ended.wait(PATIENCE)
        if not ended or running.what != what:
            raise TryAgain(f"volume {image.stem!r}: {running.what} takes longer{running.at}; ask again")
        with self._changing:
            if self._running.get(image) is running:
                del self._running[image]
        if running.error is not None:
            raise running.error

    def runs(self, image: Path) -> bool:
        """Whether something is being done with an image."""
        with self._changing:
            running = self._running.get(image)
        return running is not None and not running.ended.is_set()

    def cancel(self, image: Path) -> None:
        """End what is being done with an image, and forget how it ended; TryAgain if it does not end soon."""
        with self._changing:
            running = self._running.get(image)
        if running is None:
            return
        running.stopped = True
        if not running.ended.wait(_ENDS_WITHIN):
            raise TryAgain(f"volume {image.stem!r}: {running.what} does not end; ask again")
        with self._changing:
            self._running.pop(image, None)

    def forget(self, image: Path) -> None:
        """Forget how the work ended that was done with an image, if it has: nobody asks for that any more."""
        with self._changing:
            if image in self._running and self._running[image].ended.is_set():
                del self._running[image]

    def end(self) -> None:
        """End all work but what goes on by itself; whoever asks for it again begins it anew."""
        with self._changing:
            running = [one for one in self._running.values() if not one.goes_on]
        for one in running:
            one.stopped = True
        late = time.monotonic() + _ENDS_WITHIN
        for one in running:
            one.ended.wait(max(0.0, late - time.monotonic()))

    def _start(self, image: Path, running: _Work, work: Callable[[Look], None]) -> None:
        def whole() -> None:
            try:
                work(lambda tool, pid: self._look(image, running, tool, pid))
            except PluginError as error:
                running.error = error
            except Exception as error:
                running.error = PluginError(f"{running.what} failed: {type(error).__name__}: {error}")
            finally:
                running.ended.set()

        try:
            threading.Thread(target=whole, name=f"work:{image.stem}", daemon=True).start()
        except RuntimeError as error:
            del self._running[image]
            raise TryAgain(f"no thread can be started for {running.what}: {error}") from error

    def _look(self, image: Path, running: _Work, tool: str, pid: int) -> bool:
        """Note how far a tool is, and log it now and then; return whether it may go on."""
        now = time.monotonic()
        running.at = f", {tool} for {now - running.began:.0f} s{_done(pid)}"
        if now - running.told > TOLD_EVERY:
            running.told = now
            self.log.info("volume %s: %s goes on%s", image.stem, running.what, running.at)
        return not running.stopped


def _done(pid: int) -> str:
    """Return what a process has read and written so far (proc(5), io)."""
    with suppress(OSError, ValueError):
        lines = Path(f"/proc/{pid}/io").read_text(encoding="ascii").splitlines()
        counts = {name: int(count) for name, _, count in (line.partition(":") for line in lines)}
        read, written = (counts[name] >> 20 << 20 for name in ("rchar", "wchar"))
        return f"; it has read {show(read)} and written {show(written)}"
    return ""
