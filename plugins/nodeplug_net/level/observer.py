"""One observer of a network namespace for all plugins of the process.

Owns: its thread, the pause after the first event, and who is told.
Refuses: to look and to repair, which are the plugins' (`kept`), and to be needed: without it a plugin looks when the
daemon asks for its health.

The pause makes one look out of what belongs together, and lets our own ADDs and DELs end: while containers come and go
the thread is awake ten times a second at most, whatever their number.
"""

import logging
import os
import select
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug import Netns
from nodeplug_net.level.events import Interest, Sockets
from nodeplug_net.nftables.sockets import Identity

LOG: Final = logging.getLogger(__name__)
POLL: Final = 0.8
"""Seconds between two questions about what the kernel does not tell."""
PAUSE: Final = 0.1
"""Seconds between an event and the reading of all that came with it."""
_END_PATIENCE: Final = 5.0


@dataclass(slots=True, eq=False)
class Observation:
    """What one plugin wants to know of.

    Attributes:
        interest: returns it as it is now; called in the observer's thread.
        notify: called there after an event that may concern the plugin; returns at once.
        wants_flags: whether ports are to have hairpin mode or isolation.
    """

    interest: Callable[[], Interest]
    notify: Callable[[], None]
    observer: "Observer"
    wants_flags: bool = False

    def hear_of_flags(self, wanted: bool) -> bool:
        """Say whether ports are to have flags; return whether that is new, and nothing was told of them until now."""
        if wanted == self.wants_flags:
            return False
        with _CHANGING:
            self.wants_flags = wanted
            self.observer.hear_of_flags()
        return wanted

    def close(self) -> None:
        """End it, and the observer with its last one. To be called once."""
        with _CHANGING:
            self.observer.told.remove(self)
            ends = not self.observer.told
            if ends:
                del _OBSERVERS[self.observer.namespace]
        if ends:
            self.observer.end()


@dataclass(slots=True)
class Observer:
    """Listens until it is ended, in the namespace of the thread that makes it.

    Raises:
        OSError: the kernel forbids to listen.
    """

    namespace: Identity
    told: list[Observation] = field(default_factory=list)
    _sockets: Sockets = field(default_factory=Sockets)
    _wake_up: int = field(default_factory=lambda: os.eventfd(0, os.EFD_CLOEXEC))
    _thread: threading.Thread | None = None
    _asked: float = 0.0

    def begin(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="net:observer", daemon=True)
        self._thread.start()

    @property
    def hears_elsewhere(self) -> bool:
        """Whether the kernel tells of what happens in containers' namespaces, and somebody listens."""
        return self._sockets.elsewhere is not None and self._thread is not None and self._thread.is_alive()

    def end(self) -> None:
        """End the thread at once; it closes the sockets. To be called once."""
        os.eventfd_write(self._wake_up, 1)
        if self._thread is not None:
            self._thread.join(timeout=_END_PATIENCE)
        if self._thread is None or not self._thread.is_alive():
            os.close(self._wake_up)

    def _run(self) -> None:
        waiting, ending = select.poll(), select.poll()
        for opened in (*(one.fileno() for one in self._sockets.all()), self._wake_up):
            waiting.register(opened, select.POLLIN)
        ending.register(self._wake_up, select.POLLIN)
        try:
            while True:
                asked = any(one.interest().changed for one in list(self.told))
                came = waiting.poll(POLL * 1000 if asked else None)
                if ending.poll(PAUSE * 1000 if came else 0):
                    return
                if came:
                    self._tell()
                self._ask()
        except Exception:
            LOG.exception("nobody observes the network of this node any more; it is looked at every ten seconds")
        finally:
            self._sockets.close()

    def hear_of_flags(self) -> None:
        """Let pass what tells of ports without flags as long as a plugin wants some to have them."""
        with suppress(OSError):  # nobody observes any more
            self._sockets.hear(all_flags=any(one.wants_flags for one in self.told))

    def _tell(self) -> None:
        events = self._sockets.read()
        for one in list(self.told):
            if events.concern(one.interest()):
                one.notify()

    def _ask(self) -> None:
        """Ask about what the kernel does not tell, if that is due."""
        if time.monotonic() - self._asked < POLL:
            return
        self._asked = time.monotonic()
        for one in list(self.told):
            changed = one.interest().changed
            if changed is not None and changed():
                one.notify()


_OBSERVERS: Final[dict[Identity, Observer]] = {}
_CHANGING: Final = threading.Lock()


def observe(interest: Callable[[], Interest], notify: Callable[[], None]) -> Observation:
    """Observe the namespace that the calling thread is in; see `Observation` for the arguments.

    Raises:
        OSError: the kernel forbids to listen.
    """
    current = Netns.current()
    namespace = current.identity
    current.close()
    with _CHANGING:
        observer = _OBSERVERS.get(namespace)
        begins = observer is None
        if observer is None:
            observer = _OBSERVERS[namespace] = Observer(namespace)
        observation = Observation(interest, notify, observer)
        observer.told.append(observation)
        if begins:
            observer.begin()
    return observation
