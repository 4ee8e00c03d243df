"""Copies of images: in an instant where the disk can share blocks, otherwise in the background, with progress.

Owns: the threads that copy, what they log, and their end with the plugin.
Refuses: to keep a caller waiting for a long copy: it asks again, and finds it further on. A copy that was killed is
begun anew.
"""

import errno
import logging
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug import AlreadyExists, Exhausted, InUse, PluginError, TryAgain
from nodeplug.fields import show_quantity as show
from nodeplug_volumes import extents, filesystem
from nodeplug_volumes.filesystem import space

PATIENCE: Final = 5.0
"""Seconds that a caller waits for a copy; a provisioner gives each call ten."""
_TOLD_EVERY: Final = 10.0
_ENDS_WITHIN: Final = 5.0


@dataclass(slots=True)
class _Copy:
    """One that is being made."""

    source: Path
    size: int = 0
    at: int = 0
    stopped: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    error: PluginError | None = None

    @property
    def percent(self) -> int:
        return 100 * self.at // max(1, self.size)


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of one plugin; any thread."""

    log: logging.LoggerAdapter[logging.Logger]
    _running: dict[Path, _Copy] = field(default_factory=dict)
    _changing: threading.Lock = field(default_factory=threading.Lock)

    def make(
        self, source: Path, target: Path, *, is_used: Callable[[], bool], complete: Callable[[Path], None]
    ) -> None:
        """Copy an image; a repeated call waits for the same copy.

        Args:
            source: the image.
            target: what it becomes.
            is_used: whether the source is attached, so that a copy that takes time would be of no one moment.
            complete: gives the finished file, whose path it gets, its name.

        Raises:
            AlreadyExists: the target is being made from something else.
            TryAgain: it takes longer; the message says how far it is.
            InUse: the source is in use, and the disk cannot share blocks.
            Exhausted: the disk is full.
            PluginError: the disk fails.
        """
        with self._changing:
            running = self._running.get(target)
            is_new = running is None
            if running is None:
                running = self._running[target] = _Copy(source)
        if running.source != source:
            raise AlreadyExists(f"{target.stem} is being made from {running.source.stem}; {source.stem} is asked for")
        if is_new:
            self._start(running, target, is_used, complete)
        if not running.ended.wait(PATIENCE):
            raise TryAgain(f"{source.stem} is being copied to {target.stem}: {running.percent} %; ask again")
        with self._changing:
            self._running.pop(target, None)
        if running.error is not None:
            raise running.error

    def _start(self, copy: _Copy, target: Path, is_used: Callable[[], bool], complete: Callable[[Path], None]) -> None:
        try:
            if self._instantly(copy.source, target, complete):
                copy.ended.set()
            else:
                self._begin(copy, target, is_used, complete)
        except BaseException as error:
            copy.error = error if isinstance(error, PluginError) else PluginError(f"{type(error).__name__}: {error}")
            copy.ended.set()

    def runs(self, target: Path) -> bool:
        """Whether something is being made."""
        with self._changing:
            running = self._running.get(target)
        return running is not None and not running.ended.is_set()

    def forget(self, target: Path) -> None:
        """Forget how a copy ended, if it has: nobody asks for that any more."""
        with self._changing:
            if target in self._running and self._running[target].ended.is_set():
                del self._running[target]

    def cancel(self, target: Path) -> None:
        """End a copy that is no longer wanted, if there is one; TryAgain if it does not end soon."""
        with self._changing:
            running = self._running.get(target)
        if running is None:
            return
        running.stopped = True
        if not running.ended.wait(_ENDS_WITHIN):
            raise TryAgain(f"{target.stem} is still being made from {running.source.stem}; ask again")
        with self._changing:
            self._running.pop(target, None)

    def end(self) -> None:
        """End all copies; what they have made so far is removed."""
        with self._changing:
            running = list(self._running.values())
        for one in running:
            one.stopped = True
        late = time.monotonic() + _ENDS_WITHIN
        for one in running:
            one.ended.wait(max(0.0, late - time.monotonic()))

    def _instantly(self, source: Path, target: Path, complete: Callable[[Path], None]) -> bool:
        fresh = _fresh(target)
        with ExitStack() as stack:
            stack.callback(fresh.unlink, missing_ok=True)
            lock = stack.enter_context(filesystem.locked(source))
            try:
                made = _create(fresh)
                stack.callback(os.close, made)
                if not extents.clone(lock, made):
                    return False
                complete(fresh)
            except OSError as error:
                raise _failed(source, target, error) from error
        return True

    def _begin(self, copy: _Copy, target: Path, is_used: Callable[[], bool], complete: Callable[[Path], None]) -> None:
        """Begin a copy in a thread, which holds the lock of the source: nobody may mount it meanwhile."""
        source = copy.source
        with ExitStack() as stack:
            lock = stack.enter_context(filesystem.locked(source))
            if is_used():
                raise InUse(
                    f"{source.stem} is in use, and the disk of {source.parent} cannot share blocks between files: "
                    "end its pods first, or keep the images on xfs (reflink=1) or btrfs"
                )
            copy.size = os.fstat(lock).st_size
            held = stack.pop_all()
        work = lambda: self._work(copy, lock, target, complete, held)  # noqa: E731 - the thread's whole life
        try:
            threading.Thread(target=work, name=f"copy:{target.stem}", daemon=True).start()
        except RuntimeError as error:
            held.close()
            raise TryAgain(f"no thread can be started for a copy: {error}") from error

    def _work(self, copy: _Copy, lock: int, target: Path, complete: Callable[[Path], None], held: ExitStack) -> None:
        fresh = _fresh(target)
        try:
            with held:
                made = _create(fresh)
                try:
                    whole = extents.copy(lock, made, self._teller(copy, target))
                finally:
                    os.close(made)
                if whole:
                    complete(fresh)
                    self.log.info("%s is copied to %s: %s", copy.source.stem, target.stem, show(copy.size))
        except PluginError as error:
            copy.error = error
        except OSError as error:
            copy.error = _failed(copy.source, target, error)
        finally:
            fresh.unlink(missing_ok=True)
            copy.ended.set()

    def _teller(self, copy: _Copy, target: Path) -> Callable[[int], bool]:
        last = time.monotonic()

        def told(at: int) -> bool:
            nonlocal last
            copy.at = at
            if time.monotonic() - last > _TOLD_EVERY:
                last = time.monotonic()
                self.log.info(
                    "copying %s to %s: %d %%, %s of %s",
                    *(copy.source.stem, target.stem, copy.percent, show(at), show(copy.size)),
                )
            return not copy.stopped

        return told


def _fresh(target: Path) -> Path:
    return target.with_name(f".{target.name}.new")


def _create(path: Path) -> int:
    path.unlink(missing_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _failed(source: Path, target: Path, error: OSError) -> PluginError:
    free, whole = space(target.parent)
    text = f"cannot copy {source} to {target}: {error.strerror}; {show(free)} free of {show(whole)}"
    return Exhausted(text) if error.errno in {errno.ENOSPC, errno.EDQUOT} else PluginError(text)
