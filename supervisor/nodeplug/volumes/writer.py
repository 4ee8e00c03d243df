"""One thread that writes to a disk which may freeze, for threads that wait for it with bounded patience.

Owns: that thread (made when there is work, gone when there has been none for a while), the line before it, and what is
done later because the disk did not answer in time.
Refuses: to let anybody wait twice for a disk that does not answer. Whoever stands in line while a piece of work hangs
is refused, and its work never begun; work that hangs is done whenever the disk answers.

`nodeplug.process.lane` is the same for callers on the event loop.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from nodeplug.process.lane import Unanswered

LOG: Final = logging.getLogger(__name__)
_LINE: Final = 15.0
"""How many times its patience anybody waits in a line that moves."""
_IDLE: Final = 10.0
"""Seconds without work after which the thread ends."""


@dataclass(slots=True, eq=False)
class _Piece:
    work: Callable[[], None]
    ended: bool = False
    error: Exception | None = None


class Writer:
    """Pieces of work that go one after another. Used from any thread but the event loop's.

    Args:
        what: who does not answer when work does not come back, for messages.
        patience: seconds that anybody waits for a piece of work, its own or the one before it.
    """

    def __init__(self, what: str, patience: float) -> None:
        self._what = what
        self._patience = patience
        self._changed = threading.Condition()
        self._line: deque[_Piece] = deque()
        self._late: dict[str, Callable[[], None]] = {}
        self._present: _Piece | None = None
        self._since = 0.0
        self._serving = False

    def run(self, key: str, work: Callable[[], None]) -> None:
        """Do a piece of work about a key, and wait for it; what was to be done later about that key is obsolete.

        Raises:
            Unanswered: it has not come back in time and may still be done, or an earlier one has not and it never is.
            Exception: what the work raised.
        """
        piece = _Piece(work)
        until = time.monotonic() + self._patience * _LINE
        with self._changed:
            if reason := self._stuck:
                raise Unanswered(reason)
            self._late.pop(key, None)
            self._line.append(piece)
            self._serve()
            while not piece.ended:
                crowded = time.monotonic() >= until
                if self._stuck or crowded:
                    with suppress(ValueError):  # it was begun
                        self._line.remove(piece)
                    raise Unanswered(self._stuck or f"{self._what} has too many requests at once; try again")
                passed = 0.0 if self._present is None else time.monotonic() - self._since
                self._changed.wait(max(self._patience - passed, 0.0))
        if piece.error is not None:
            raise piece.error

    def postpone(self, key: str, work: Callable[[], None]) -> None:
        """Do a piece of work when nobody waits and the disk answers, unless something newer about its key comes."""
        with self._changed, suppress(Unanswered):  # without a thread it is done by the next one
            self._late[key] = work
            self._serve()

    @property
    def _stuck(self) -> str:
        if self._present is None:
            return ""
        seconds = time.monotonic() - self._since
        return f"{self._what} does not answer (for {seconds:.0f} s)" if seconds >= self._patience else ""

    def _serve(self) -> None:
        """Wake the thread, or make one; it is daemonic, for a disk must not keep the process."""
        if not self._serving:
            try:
                threading.Thread(target=self._work, name=f"writes: {self._what}"[:100], daemon=True).start()
            except RuntimeError as error:
                self._line.clear()
                text = f"the daemon cannot start another thread ({error}); raise its task limit (TasksMax)"
                raise Unanswered(text) from None
            self._serving = True
        self._changed.notify_all()

    def _work(self) -> None:
        while (piece := self._next()) is not None:
            try:
                piece.work()
            except Exception as error:
                piece.error = error
            with self._changed:
                piece.ended, self._present = True, None
                self._changed.notify_all()

    def _next(self) -> _Piece | None:
        """Wait for work; None when there has been none for a while."""
        with self._changed:
            idle = time.monotonic() + _IDLE
            while not (self._line or self._late):
                left = idle - time.monotonic()
                if left <= 0:
                    self._serving = False
                    return None
                self._changed.wait(left)
            self._present = self._line.popleft() if self._line else self._overdue()
            self._since = time.monotonic()
            return self._present

    def _overdue(self) -> _Piece:
        key = next(iter(self._late))
        work = self._late.pop(key)

        def tell() -> None:
            try:
                work()
            except Exception as error:
                LOG.warning("the record %r stays as it is: %s", key, error)

        return _Piece(tell)
