"""The sockets that plugins keep in the daemon, section by section, and what becomes of them in the next daemon.

Owns: which section has which; those of sections that are gone are closed.
Refuses: the way to the next daemon (`process/succession`), and what the sockets are.
"""

import logging
import socket
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.discarding import discard
from nodeplug.contract.errors import PluginError
from nodeplug.contract.sockets import KeptSockets

LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SocketsBySection:
    """All kept sockets. Used from the event loop, except for `of`, which any thread may call."""

    _sections: dict[str, KeptSockets] = field(default_factory=dict)

    def of(self, section: str) -> KeptSockets:
        """Return those of a section."""
        return self._sections.setdefault(section, KeptSockets())

    def adopt(self, section: str, name: str, descriptor: int) -> None:
        """Keep a socket that the daemon before has left, whose descriptor is taken over; log it if that cannot be."""
        try:
            with socket.socket(fileno=descriptor) as left:
                self.of(section).keep(name, left)
        except (PluginError, OSError) as error:
            LOG.error("a socket of plugin %s, %r, is not kept: %s", section, name, error)

    def lend(self) -> list[tuple[str, str, socket.socket]]:
        """Return copies of all with their sections and names, for the next daemon."""
        found = [(section, name, kept.get(name)) for section, kept in self._sections.items() for name in kept.names()]
        return [(section, name, one) for section, name, one in found if one is not None]

    def forget_others(self, sections: Collection[str]) -> None:
        """Close those of all other sections."""
        for section in self._sections.keys() - set(sections):
            kept = self._sections.pop(section)
            for name in kept.names():
                last = kept.get(name)  # a copy, so that to drop the other one waits for nobody
                kept.drop(name)
                discard([last.detach()] if last is not None else [])
