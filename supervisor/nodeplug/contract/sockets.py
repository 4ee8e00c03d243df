"""Sockets that stay open while a plugin is exchanged: the daemon holds them, and the next daemon after it.

Owns: what a plugin keeps, finds and drops there, by names that it chooses.
Refuses: sockets of removed sections, and the way to the next daemon (both are the daemon's).

As the store of descriptors of systemd (sd_pid_notify_with_fds(3), FDSTORE=1), but for one plugin of a daemon.
"""

import os
import resource
import socket
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import Exhausted, InvalidRequest

__all__ = ["KeptSockets"]

_LONGEST: Final = 200
_SHARE: Final = 8
"""The part of the descriptors of this process that one plugin may have here is one by so many."""


@dataclass(frozen=True, slots=True)
class KeptSockets:
    """The sockets that one plugin keeps. Any thread.

    They stay when the plugin is stopped, changed or started again, when its process ends, and when another daemon takes
    over (`nodeplug replace`). They are closed when the section is removed or the daemon ends.
    """

    _kept: dict[str, int] = field(default_factory=dict)
    """Descriptors of our own, by name."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, name: str, kept: socket.socket) -> None:
        """Keep a socket open under a name, in the place of one that is there; your own may be closed then.

        Args:
            name: at most 200 characters.
            kept: a socket of any kind.

        Raises:
            InvalidRequest: none can be named so.
            Exhausted: the plugin keeps too many.
        """
        if not 0 < len(name) <= _LONGEST:
            raise InvalidRequest(f"the name of a kept socket has 1 to {_LONGEST} characters, found {len(name)}")
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // _SHARE
        with self._lock:
            if name not in self._kept and len(self._kept) >= most:
                raise Exhausted(f"at most {most} sockets are kept for a plugin; drop some, or raise LimitNOFILE")
            former, self._kept[name] = self._kept.get(name), os.dup(kept.fileno())
        if former is not None:
            os.close(former)

    def names(self) -> Sequence[str]:
        """Return the names of what is kept."""
        with self._lock:
            return list(self._kept)

    def get(self, name: str) -> socket.socket | None:
        """Return a socket that is kept, as one of your own; None if there is none of that name."""
        with self._lock:
            found = self._kept.get(name)
            return socket.socket(fileno=os.dup(found)) if found is not None else None

    def drop(self, name: str) -> None:
        """Close what is kept under a name; succeed when there is none."""
        with self._lock:
            found = self._kept.pop(name, None)
        if found is not None:
            os.close(found)

    def __del__(self) -> None:
        """Close what is kept, where nobody knows of it any more."""
        for descriptor in self._kept.values():
            os.close(descriptor)
