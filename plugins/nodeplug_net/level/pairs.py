"""The veth pairs of running containers: those whose host end somebody deleted, and what a host end needs and lacks.

Owns: the comparison with the host's interfaces, and by what the kernel knows each end.
Refuses: to repeat an ADD unless the administrator chose so, and to know what a host end needs: the plugin says that.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from nodeplug import CniAdd, CniCheck, CniResult, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.level.containers import ANEW, Container, Containers
from nodeplug_net.level.events import Place
from nodeplug_net.level.host_ends import HostEnd
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links, links_in


@dataclass(slots=True)
class Pairs(Containers):
    """The pairs of one plugin by label. Any thread may call it, where nothing else is said.

    Attributes:
        expects: says what an attachment needs on the host.
    """

    expects: Callable[[CniCheck], HostEnd] = lambda request: HostEnd(Attachment.of(request))
    _ends: dict[str, tuple[Container, HostEnd]] = field(default_factory=dict)
    _indices: dict[str, int] = field(default_factory=dict)

    def keep_pair(self, request: CniAdd, result: CniResult, outside: Link) -> None:
        """Note the container that an ADD has attached, and its host end."""
        self._indices[Attachment.of(request).label] = outside.index
        self.keep(request, result, _other_end(outside))

    @contextmanager
    def made_again(self, label: str) -> Iterator[CniAdd]:
        """Compose the ADD of a container again; when it has been served, both ends get the MACs that they had.

        Raises:
            PluginError: the container has ended.
            OSError: the kernel refuses.
        """
        known = self.known(label)
        with self.repeated(label) as request:
            yield request
            with Netlink() as netlink:
                _give_macs(Links(netlink), {Attachment.of(request).host_veth: False}, known.result)
            with links_in(request.netns) as inner:
                _give_macs(inner, {request.ifname: True}, known.result)
            self.keep(replace(request, config=known.request.config), known.result)

    def look_at(self, there: Iterable[Link]) -> dict[str, list[str]]:
        """Name what containers lost, by label; see `look`.

        Args:
            there: the host's links.

        Raises:
            OSError: the kernel refuses.
        """
        there = list(there)
        self._forget_handed_over(there)
        known = self.running()
        ends = {link.alias: link for link in there if link.alias in known}
        self._indices = {label: link.index for label, link in ends.items()}
        for label, link in ends.items():
            if (place := _other_end(link)) is not None:
                self._places[label] = place
        gone = {label: [_gone(one)] for label, one in known.items() if label not in ends}
        return gone | self._look({label: one for label, one in known.items() if label in ends})

    def _forget_handed_over(self, there: Iterable[Link]) -> None:
        """Forget those whose host end has lost its label: another program ends them now (`reference.way_back`)."""
        unlabelled = {link.name for link in there if not link.alias and link.kind == "veth"}
        if not unlabelled:
            return
        with self._lock:
            for label in [one for one, whose in self._known.items() if whose.attachment.host_veth in unlabelled]:
                self._drop(label)

    def host_ends(self) -> list[HostEnd]:
        """Return what running containers need on the host, oldest first; the calling thread is in its namespace."""
        known = self.running()
        for label, one in known.items():
            if self._ends.get(label, (None,))[0] is not one:
                try:
                    with self.checked(one) as request:
                        self._ends[label] = one, self.expects(request)
                except PluginError:  # it has ended since
                    self._ends.pop(label, None)
        self._ends = {label: self._ends[label] for label in known if label in self._ends}
        return [end for _, end in self._ends.values()]

    def flags(self) -> Mapping[int, tuple[bool, bool]]:
        """Return hairpin mode and isolation of ports by index; a new one is as the others of its network are."""
        known, networks = dict(self._known), dict[str, tuple[bool, bool]]()
        for one, end in self._ends.values():
            if end.flags is not None:
                networks[one.attachment.network] = end.flags
        found = {}
        for label, index in list(self._indices.items()):
            flags = networks.get(known[label].attachment.network) if label in known else None
            own = self._ends.get(label)
            if own is not None and own[1].flags is not None:
                flags = own[1].flags
            if flags is not None:
                found[index] = flags
        return found

    def gateways(self) -> frozenset[int]:
        """Return the indices of host ends that are gateways of their containers, as far as they are known."""
        indices = list(self._indices.items())
        return frozenset(index for label, index in indices if label in self._known)


def _other_end(outside: Link) -> Place | None:
    """Return where the other end of a host end is."""
    number = outside.peer_netns
    return (number, outside.peer) if number is not None and number >= 0 else None


def _give_macs(links: Links, wanted: Mapping[str, bool], result: CniResult) -> None:
    """Give interfaces the MACs of a result, in which each is in a container or not."""
    for one in result.interfaces:
        if wanted.get(one.name) == bool(one.sandbox) and one.mac:
            link = links.get(one.name)
            if link is not None and link.mac != one.mac:
                links.set_mac(link, one.mac)


def _gone(pair: Container) -> str:
    one = pair.attachment
    return (
        f"interface {one.ifname} of container {one.container_id} in network {one.network} is gone, "
        f"as its host end {one.host_veth} was deleted: {ANEW}"
    )
