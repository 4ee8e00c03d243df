"""The verbs of bandwidth.

Owns: the order of the steps, the ifb links and their names, and what the reference's are called.
Refuses: hooks, qdiscs and filters (see `shaping`).

Nothing is recorded but by the daemon: an ifb link is found by its name, which is computed, and by its alias; everything
else ends with the container's veth pair.
"""

import hashlib
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniInterface,
    CniResult,
    CniStatus,
    InvalidRequest,
    NotReady,
    PluginError,
    TryAgain,
)
from nodeplug_net.attachment import Attachment, network_label
from nodeplug_net.bandwidth.config import BandwidthConfig, parse_bandwidth
from nodeplug_net.bandwidth.shaping import Shaping
from nodeplug_net.level.containers import Containers
from nodeplug_net.lower_link import creating
from nodeplug_net.netlink.connection import EEXIST, Netlink, Request
from nodeplug_net.netlink.link_messages import create_link, label_link, name_link
from nodeplug_net.netlink.links import Link, Links, get_request, links_in, parse_link
from nodeplug_net.netlink.reaper import Reaper
from nodeplug_net.undo import Errors, Undo

KIND: Final = "ifb"
_PREFIX: Final = "bwp"
_LENGTH: Final = 15
_UNNAMED: Final = frozenset({"0.1.0", "0.2.0"})
"""Versions whose results name no interface."""
_MARK: Final = "shaping "
"""What the alias of an ifb link begins with; the label of the attachment follows. A pair has the label alone."""


def reference_ifb(attachment: Attachment) -> str:
    """Return the name that the reference gives a container's ifb link, whatever the interface (getIfbDeviceName)."""
    return _ifb_name(attachment.network + attachment.container_id)


def own_ifb(attachment: Attachment) -> str:
    """Return the name where another interface of the container has the reference's."""
    return _ifb_name(f"{attachment.network}\0{attachment.container_id}\0{attachment.ifname}")


def _ifb_name(text: str) -> str:
    return f"{_PREFIX}{hashlib.sha512(text.encode('utf-8', 'surrogateescape')).hexdigest()}"[:_LENGTH]


def label_of(link: Link) -> str:
    """Return whose limit an ifb link is, as its alias says; empty if it is another's."""
    return link.alias.removeprefix(_MARK) if link.kind == KIND and link.alias.startswith(_MARK) else ""


@dataclass(slots=True)
class Bandwidth:
    """What the verbs share. Any thread may use it.

    Attributes:
        containers: those with a limit.
        refused: what the kernel lacks, as the last ADD found out; empty otherwise.
    """

    log: logging.LoggerAdapter[logging.Logger]
    reaper: Reaper = field(default_factory=Reaper)
    containers: Containers = field(default_factory=lambda: Containers(every=True))
    refused: str = ""
    _fair: bool = True

    def add(self, request: CniAdd) -> CniResult:
        """Serve ADD; a failure leaves no limit.

        Raises:
            PluginError: the configuration is wrong, there is no pair, or the kernel refuses.
            OSError: the namespace cannot be entered.
        """
        config = parse_bandwidth(request)
        before = _chained(request)
        if config.ingress is None and config.egress is None:
            return before
        with Netlink() as netlink, Undo(self.log) as undo:
            links, shaping = Links(netlink), Shaping(netlink, self._fair)
            link = _host_end(request, links)
            undo.push(f"remove the limits of interface {link.name}", lambda: shaping.free(link))
            ifb = None
            with self._noting():
                if config.ingress is not None:
                    shaping.limit(link, config.ingress, config)
                if config.egress is not None:
                    ifb = self._ifb(Attachment.of(request), links, link.mtu, undo)
                    shaping.divert(link, ifb, config)
                    shaping.limit(ifb, config.egress)
            self._fair = shaping.fair
        result = before
        if ifb is not None:
            result = replace(before, interfaces=(*before.interfaces, CniInterface(ifb.name, mac=ifb.mac)))
        self.containers.keep(request, result)
        return result

    @contextmanager
    def _noting(self) -> Iterator[None]:
        """Keep in mind whether the kernel can make what is needed."""
        try:
            yield
        except PluginError as error:
            self.refused = str(error)
            raise
        self.refused = ""

    def _ifb(self, attachment: Attachment, links: Links, mtu: int, undo: Undo) -> Link:
        """Make the ifb link of an attachment, or find that of an earlier ADD."""
        alias, names = _MARK + attachment.label, (reference_ifb(attachment), own_ifb(attachment))
        there = dict(zip(names, _get(links, names), strict=True))
        for link in there.values():
            if link is not None and _is_own(link, alias):
                if not link.alias:  # by index alone: older kernels take a name for a change of it, of a link that is up
                    links.netlink.ask(Request(label_link(link.index, alias), f"label interface {link.name}"))
                return link
        name = next((one for one, link in there.items() if link is None), None)
        if name is None:
            raise TryAgain(f"interfaces {' and '.join(names)} belong to others; a new container id gives other names")
        undo.push(f"delete interface {name}", lambda: self._delete(links, [name], alias))  # before: answers get lost
        with creating("adding link: {}"):
            found = links.netlink.ask(
                Request(create_link(KIND, name, mtu=mtu), f"create interface {name}", EEXIST),
                Request(name_link(0, name, alias), f"label interface {name}"),
                get_request(name),
            )
        return parse_link(found[2].messages[0])

    def delete(self, request: CniDel) -> None:
        """Serve DEL: delete the ifb link. Needs neither a result nor a namespace; all else ends with the pair.

        Raises:
            PluginError: the link is still there.
            OSError: the kernel refuses.
        """
        attachment = Attachment.of(request)
        self.containers.forget(attachment.label)
        with Netlink() as netlink:
            names = (reference_ifb(attachment), own_ifb(attachment))
            self._delete(Links(netlink), names, _MARK + attachment.label)

    def _delete(self, links: Links, names: Sequence[str], alias: str) -> None:
        for link in _get(links, names):
            if link is not None and _is_own(link, alias):
                self.reaper.delete(link).wait(links)

    def differences(self, request: CniCheck) -> list[str]:
        """Name what is not as ADD left it.

        Raises:
            PluginError: there is nothing to compare, or the configuration is wrong.
            OSError: the namespace cannot be entered.
        """
        return [about for _, about in self._differences(request)]

    def check(self, request: CniCheck) -> None:
        """Serve CHECK.

        Raises:
            PluginError: with every difference.
            OSError: the namespace cannot be entered.
        """
        found = list(self._differences(request))
        if found:
            raise PluginError(
                "; ".join(dict.fromkeys(sentence for sentence, _ in found)),
                details="; ".join(f"{about}" for _, about in found) + ": DEL and ADD the attachment",
            )

    def _differences(self, request: CniAdd | CniCheck) -> Iterator[tuple[str, str]]:
        """Compare; yield the reference's sentence and what it is about."""
        config = parse_bandwidth(request)
        _chained(request)
        if config.ingress is None and config.egress is None:
            return
        with Netlink() as netlink:
            links, shaping = Links(netlink), Shaping(netlink)
            link = _host_end(request, links)
            if config.ingress is not None:
                yield from shaping.differences(link, config.ingress)
            if config.egress is not None:
                yield from self._egress_differences(request, config, links, shaping, link)

    def _egress_differences(
        self, request: CniAdd | CniCheck, config: BandwidthConfig, links: Links, shaping: Shaping, link: Link
    ) -> Iterator[tuple[str, str]]:
        attachment = Attachment.of(request)
        names = (reference_ifb(attachment), own_ifb(attachment))
        alias = _MARK + attachment.label
        ifb = next((one for one in _get(links, names) if one is not None and _is_own(one, alias)), None)
        if ifb is None:
            yield "get ifb device: Link not found", f"no interface {names[0]} limits what the container sends"
            return
        if not ifb.is_up:
            yield f"interface {ifb.name} is down", "what the container sends is dropped there"
        if not shaping.diverted(link, ifb):
            yield "Failed to find filter", f"what interface {link.name} receives does not go to {ifb.name}"
        if config.egress is not None:
            yield from shaping.differences(ifb, config.egress)

    def aliases(self) -> frozenset[str]:
        """Return the aliases of ifb links that are not to end."""
        return frozenset(_MARK + label for label in self.containers.labels())

    def collect(self, request: CniGc) -> None:
        """Serve GC: delete the ifb links of this network that belong to no valid attachment.

        Raises:
            PluginError: with every failure; the rest is done.
            OSError: the kernel refuses.
        """
        if request.valid is None:
            return
        valid = {Attachment(request.network, one.container_id, one.ifname).label for one in request.valid}
        self.containers.forget_invalid(request)
        errors, prefix, kept = Errors(), _MARK + network_label(request.network), {_MARK + one for one in valid}
        with Netlink() as netlink:
            links = Links(netlink)
            for link in links.all():
                if link.kind == KIND and link.alias.startswith(prefix) and link.alias not in kept:
                    with errors.kept():
                        self.reaper.delete(link).wait(links)
        errors.raise_all()

    def status(self, request: CniStatus) -> None:
        """Serve STATUS.

        Raises:
            NotReady: the kernel cannot limit anything, as the last ADD found out.
            InvalidRequest: a key is wrong.
        """
        parse_bandwidth(request)
        if self.refused:
            raise NotReady(f"network {request.network}: {self.refused}", details="the next ADD tries again")


def _chained(request: CniAdd | CniCheck) -> CniResult:
    if request.prev_result is None:
        raise InvalidRequest(
            "must be called as chained plugin", details="put it after the plugin that makes the interface"
        )
    return request.prev_result


def _host_end(request: CniAdd | CniCheck, links: Links) -> Link:
    """Find the host end of the container's veth pair.

    Raises:
        InvalidRequest: there is none, or the previous result does not name it; the sentences are the reference's.
    """
    interfaces, named = _chained(request).interfaces, request.version not in _UNNAMED
    if named and not interfaces:
        raise InvalidRequest("no interfaces provided", details="put it after the plugin that makes the interface")
    name = request.ifname
    with links_in(request.netns) as inner:
        inside = inner.get(name)
    reason = "" if inside is not None else f'could not look up "{name}": Link not found'
    if inside is not None and inside.kind != "veth":
        reason = f'interface "{name}" was not a veth interface'
    if inside is None or reason:
        raise InvalidRequest(
            f"container interface {name} has no veth peer: {reason}", details="only veth pairs are limited"
        )
    outside = links.at(inside.peer)
    if outside is None or (outside.kind, outside.peer) != ("veth", inside.index):
        raise InvalidRequest(f"veth peer with index {inside.peer} is not in host ns")
    if named and not any(not one.sandbox and one.name == outside.name for one in interfaces):
        raise InvalidRequest(
            "no veth peer of container interface found in host ns", details=f"prevResult does not name {outside.name}"
        )
    return outside


def _get(links: Links, names: Sequence[str]) -> list[Link | None]:
    answers = links.netlink.ask(*map(get_request, names))
    return [parse_link(one.messages[0]) if one.messages else None for one in answers]


def _is_own(link: Link, alias: str) -> bool:
    """Whether an ifb link of a computed name is this attachment's: the reference gives no alias."""
    return link.kind == KIND and link.alias in {"", alias}
