"""The threads that stand at the exec socket: each accepts one caller, and serves the call itself.

Owns: their line, of which only the first waits for a caller, and their number.
Refuses: what a call is (`nodeplug.exec.server`), and to keep a thread that has called a plugin: it may be in another
network namespace, or never come back.
"""

import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from nodeplug.process.turns import ThreadTask, TurnLoop

SPARE: Final = 3
"""Threads that stand in the line while nobody calls: starting one takes as long as a short call."""
_AGAIN: Final = 0.1
"""Seconds between two attempts to accept while that fails, or to start a thread."""


class Doorway:
    """The line of threads. Made, opened, shut and closed on the loop.

    Args:
        loop: whose turns the threads take.
        listening: returns the descriptor of the socket, or -1 when there is none any more.
        accept: returns the task of the next caller, or None if there is none; called in a turn; raises OSError.
    """

    def __init__(self, loop: TurnLoop, listening: Callable[[], int], accept: Callable[[], ThreadTask | None]) -> None:
        self._loop = loop
        self._listening = listening
        self._accept = accept
        self._first = threading.Lock()
        self._counting = threading.Lock()
        self._standing = 0
        self._open = threading.Event()
        self._open.set()
        self._closed = False
        self._troubled = False
        self._news = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._fill()

    def shut(self) -> None:
        """Accept nobody until it is opened."""
        self._open.clear()

    def open(self) -> None:
        """Accept again."""
        self._open.set()

    def look_again(self) -> None:
        """Have the first thread look which socket there is."""
        os.eventfd_write(self._news, 1)

    def close(self) -> None:
        """End the threads that stand in the line; those that serve a caller go on."""
        self._closed = True
        self._open.set()
        self.look_again()

    def _count(self, change: int) -> int:
        with self._counting:
            self._standing += change
            return self._standing

    def _fill(self) -> None:
        """Start threads until there are enough in the line; what none can be started for is done on the loop."""
        while not self._closed and self._standing < SPARE:
            self._count(1)
            try:
                threading.Thread(target=self._stand, name="exec:door", daemon=True).start()
            except RuntimeError:
                if not self._count(-1):
                    with suppress(RuntimeError):  # the loop is closed: the daemon is ending
                        self._loop.call_soon_threadsafe(self._serve_on_the_loop)
                return

    def _serve_on_the_loop(self) -> None:
        """Serve who is there without a thread of ours: they are told why there is none for their calls."""
        if self._standing or self._closed:
            return
        with suppress(OSError):
            while self._open.is_set() and (task := self._accept()) is not None:
                task.move()
        self._loop.call_later(_AGAIN, self._fill)

    def _stand(self) -> None:
        """Stand in the line, serve a caller when it is this thread's turn, and stand there again if it can."""
        used_up = False
        while not used_up:
            self._first.acquire()
            task = self._awaited()
            if task is None:
                self._first.release()
                self._count(-1)
                return
            task.run(self._give_way)
            used_up = task.used_up
            self._count(not used_up)
        self._fill()

    def _give_way(self) -> None:
        """Let the next in the line wait for a caller, before a plugin is called: until then they would only compete."""
        self._first.release()
        if not self._count(-1):
            self._fill()

    def _awaited(self) -> ThreadTask | None:
        """Wait for a caller, as the first of the line."""
        while not self._closed:
            self._wait()
            try:
                with self._loop.turn:
                    task = self._accept() if self._open.is_set() and not self._closed else None
            except OSError:  # such as EMFILE: temporary
                self._troubled = True
                time.sleep(_AGAIN)
                continue
            self._troubled = self._troubled and task is not None
            if task is not None and self._loop.get_debug():  # it would complain of every turn
                self._loop.call_soon_threadsafe(task.move)
            elif task is not None:
                return task
        return None

    def _wait(self) -> None:
        """Wait until there may be a caller, or news; not for long until an attempt after trouble has found nobody."""
        self._open.wait()
        look = select.poll()
        look.register(self._news, select.POLLIN)
        listening = self._listening()
        if listening >= 0:
            look.register(listening, select.POLLIN)
        patience = _AGAIN * 1000 if self._troubled else None
        if not self._closed and any(number == self._news for number, _ in look.poll(patience)):
            with suppress(BlockingIOError):
                os.eventfd_read(self._news)
