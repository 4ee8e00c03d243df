"""The running containers that a plugin served, and how their ADDs are repeated.

Owns: who was attached since the daemon started and has not been detached, in memory.
Refuses: containers whose namespace has ended, whose DEL comes later, and those that an earlier daemon attached, which
CHECK alone knows.
"""

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import CniAdd, CniResult, Netns, PluginError
from nodeplug_net.attachment import OURS, Attachment, network_label
from nodeplug_net.nftables.sockets import Identity

ANEW: Final = "delete its pod, or set 'repair_containers'"


@dataclass(frozen=True, slots=True)
class Container:
    """One container's interface.

    Attributes:
        attachment: whose it is.
        path: of the container's namespace.
        namespace: its identity, as another one may come to the same path.
        request: the ADD; None unless it is kept.
    """

    attachment: Attachment
    path: str
    namespace: Identity
    request: CniAdd | None = None

    @property
    def is_running(self) -> bool:
        """Whether the namespace that was attached is still there."""
        try:
            found = os.stat(self.path)  # noqa: PTH116  a magic link of /proc, perhaps
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self.namespace


@dataclass(slots=True)
class Containers:
    """The containers of one plugin by label. Any thread may call it.

    Attributes:
        repeatable: whether ADDs are kept, to be repeated.
    """

    repeatable: bool = False
    _known: dict[str, Container] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, request: CniAdd, result: CniResult) -> None:
        """Note the container that an ADD has attached."""
        attachment, netns = Attachment.of(request), request.netns
        kept = self._kept(request, result) if self.repeatable else None
        with self._lock:
            self._known[attachment.label] = Container(attachment, netns.path, netns.identity, kept)

    def _kept(self, request: CniAdd, _: CniResult) -> CniAdd:
        """Return the ADD as it is repeated."""
        return request

    def forget(self, label: str) -> None:
        """Forget a container, before anything of it is removed."""
        with self._lock:
            self._known.pop(label, None)

    def forget_others(self, network: str, valid: Collection[str]) -> None:
        """Forget the containers of a network that belong to no valid attachment, by label."""
        with self._lock:
            for label in [one for one in self._known if one.startswith(network_label(network)) and one not in valid]:
                del self._known[label]

    def labels(self) -> frozenset[str]:
        """Return the labels of all that should be there."""
        with self._lock:
            return frozenset(self._known)

    def running(self) -> dict[str, Container]:
        """Return those whose namespace is still there, by label, and forget all others."""
        with self._lock:
            known = dict(self._known)
        ended = {label for label, one in known.items() if not one.is_running}
        with self._lock:
            for label in ended:
                if self._known.get(label) is known[label]:
                    del self._known[label]
        return {label: one for label, one in known.items() if label not in ended}

    @contextmanager
    def repeated(self, label: str) -> Iterator[CniAdd]:
        """Compose the ADD of a container again; the calling thread is in the daemon's own namespace.

        Raises:
            PluginError: it was not kept, or the container's namespace is gone.
        """
        found = self._known.get(label)
        if found is None or found.request is None:
            raise PluginError(f"the ADD of {label.removeprefix(OURS)} is not known any more; {ANEW}")
        host, netns = Netns.current(), None
        try:
            netns = Netns.open(found.path)
            yield replace(found.request, host_netns=host, netns=netns)
        finally:
            host.close()
            if netns is not None:
                netns.close()
