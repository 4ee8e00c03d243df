"""The veth pairs of running containers, and those whose host end somebody deleted.

Owns: who was attached since the daemon started and has not been detached, in memory, and how that ADD is repeated.
Refuses: containers whose namespace has ended, as their pairs end with it and DEL comes later; those that an earlier
daemon attached, which CHECK alone knows; and to repeat an ADD unless the administrator chose so.
"""

import os
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import CniAdd, CniResult, Netns, PluginError
from nodeplug_net.attachment import OURS, Attachment, network_label
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links
from nodeplug_net.nftables.sockets import Identity

_ANEW: Final = "delete its pod, or set 'repair_containers'"


@dataclass(frozen=True, slots=True)
class Pair:
    """One container's interface.

    Attributes:
        attachment: whose it is.
        path: of the container's namespace.
        namespace: its identity, as another one may come to the same path.
        request: the ADD; None unless it may have to be repeated.
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
class Pairs:
    """The pairs of one plugin by label. Any thread may call it.

    Attributes:
        repeatable: whether ADDs are kept, to be repeated.
    """

    repeatable: bool = False
    _known: dict[str, Pair] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def keep(self, request: CniAdd, result: CniResult) -> None:
        """Note the pair that an ADD has made."""
        attachment, netns = Attachment.of(request), request.netns
        again = _again(request, result) if self.repeatable else None
        with self._lock:
            self._known[attachment.label] = Pair(attachment, netns.path, netns.identity, again)

    def forget(self, label: str) -> None:
        """Forget a pair, before anything of it is removed."""
        with self._lock:
            self._known.pop(label, None)

    def forget_others(self, network: str, valid: Collection[str]) -> None:
        """Forget the pairs of a network that belong to no valid attachment, by label."""
        with self._lock:
            for label in [one for one in self._known if one.startswith(network_label(network)) and one not in valid]:
                del self._known[label]

    def labels(self) -> frozenset[str]:
        """Return the labels of all that should be there."""
        with self._lock:
            return frozenset(self._known)

    def look(self) -> dict[str, list[str]]:
        """Name the pairs that are gone, by label; the calling thread is in the daemon's own namespace.

        Raises:
            OSError: the kernel refuses.
        """
        with self._lock:
            known = dict(self._known)
        if not known:
            return {}
        with Netlink() as netlink:
            there = {link.alias for link in Links(netlink).all()}
        found = {}
        for label in known.keys() - there:
            pair = known[label]
            if pair.is_running:
                found[label] = [_sentence(pair)]
            else:
                with self._lock:
                    if self._known.get(label) is pair:
                        del self._known[label]
        return found

    @contextmanager
    def repeated(self, label: str) -> Iterator[CniAdd]:
        """Compose the ADD of a pair again; the calling thread is in the daemon's own namespace.

        Raises:
            PluginError: it was not kept, or the container's namespace is gone.
        """
        pair = self._known.get(label)
        if pair is None or pair.request is None:
            raise PluginError(f"the ADD of {label.removeprefix(OURS)} is not known any more; {_ANEW}")
        host, netns = Netns.current(), None
        try:
            netns = Netns.open(pair.path)
            yield replace(pair.request, host_netns=host, netns=netns)
        finally:
            host.close()
            if netns is not None:
                netns.close()


def _sentence(pair: Pair) -> str:
    one = pair.attachment
    return (
        f"interface {one.ifname} of container {one.container_id} in network {one.network} is gone, "
        f"as its host end {one.host_veth} was deleted: {_ANEW}"
    )


def _again(request: CniAdd, result: CniResult) -> CniAdd:
    """Return the ADD that gives the container the hardware address that it has, which its neighbours know."""
    mac = next((one.mac for one in result.interfaces if one.sandbox and one.name == request.ifname), "")
    runtime = {**(request.config.get("runtimeConfig") or {}), **({"mac": mac} if mac else {})}
    return replace(request, config={**request.config, "runtimeConfig": runtime})
