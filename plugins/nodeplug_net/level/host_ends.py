"""What each attachment needs on its host, compared with the kernel in one pass over all of them, and given back.

Owns: the comparison and the repair of masqueraded addresses, checks of MACs, the flags of ports, and the addresses and
routes of a host end that is its container's gateway.
Refuses: to know how a configuration asks for that (the plugin says it, as a `HostEnd`), what a network needs as a whole
(`needs`), and links that are gone (`pairs`).
"""

import struct
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Final

from nodeplug import CniIp
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.policy import routes_by_link
from nodeplug_net.netlink.routes import Interface, parse_address
from nodeplug_net.nftables.masquerade import Element, Masquerade
from nodeplug_net.nftables.sockets import open_nft
from nodeplug_net.nftables.spoof_check import SpoofCheck
from nodeplug_net.ptp.host import configure_host_end, host_addresses

_AGAIN: Final = "the next STATUS of the network restores it"


@dataclass(frozen=True, slots=True)
class HostEnd:
    """What an attachment needs on its host.

    Attributes:
        attachment: whose it is; its host end has the computed name.
        masqueraded: its addresses that are masqueraded, each in its subnet.
        checked_mac: the only MAC that it may send from; empty if any.
        flags: hairpin mode and isolation of its port of a bridge; None if it is none.
        routed: its addresses to which the host end leads, as their gateway.
    """

    attachment: Attachment
    masqueraded: Sequence[Element] = ()
    checked_mac: str = ""
    flags: tuple[bool, bool] | None = None
    routed: Sequence[CniIp] = ()


@dataclass(frozen=True, slots=True)
class Lack:
    """What is missing of one attachment.

    Attributes:
        kind: by which such are counted together.
        text: a sentence about it.
    """

    end: HostEnd
    kind: str
    text: str


def lacking(ends: Collection[HostEnd], there: Iterable[Link], links: Links) -> list[Lack]:
    """Compare; the calling thread is in the host's namespace.

    An address that two attachments have is the newer one's: the DEL of the other has not come yet.

    Args:
        ends: oldest first.
        there: the host's links.
        links: of the host.

    Raises:
        OSError: the kernel refuses.
    """
    by_label = {link.alias: link for link in there if link.alias}
    present = [(end, link) for end in ends if (link := by_label.get(end.attachment.label)) is not None]
    found = [*_flags(present), *_ways(present, links)]
    with_rules = [end for end, _ in present if end.masqueraded or end.checked_mac]
    if with_rules:
        with open_nft() as netlink:
            found += [*_masquerading(with_rules, netlink), *_checks(with_rules, netlink)]
    return found


def told(found: Iterable[Lack]) -> dict[str, list[str]]:
    """Say by network what is missing, one sentence of each kind."""
    kinds: dict[tuple[str, str], list[Lack]] = defaultdict(list)
    for one in found:
        kinds[one.end.attachment.network, one.kind].append(one)
    texts: dict[str, list[str]] = defaultdict(list)
    for (network, _), lacks in kinds.items():
        more = f" (and {len(lacks) - 1} more like it)" if len(lacks) > 1 else ""
        texts[network].append(f"{lacks[0].text}{more}: {_AGAIN}")
    return texts


def _flags(present: Iterable[tuple[HostEnd, Link]]) -> Iterator[Lack]:
    for end, link in present:
        if end.flags is not None and link.master and (link.hairpin, link.isolated) != end.flags:
            hairpin, isolated = ("on" if one else "off" for one in (link.hairpin, link.isolated))
            whose = f"of port {link.name}, container {end.attachment.container_id}"
            yield Lack(end, "flags", f"hairpin mode {whose} is {hairpin}, and its isolation is {isolated}")


def _ways(present: Iterable[tuple[HostEnd, Link]], links: Links) -> Iterator[Lack]:
    gateways = [(end, link) for end, link in present if end.routed and link.is_up]
    if not gateways:
        return
    owners = {ip.address.ip: end for end, _ in gateways for ip in end.routed}
    addresses, ways = _addresses(links), routes_by_link(links.netlink)
    for end, link in gateways:
        whose = f"host interface {link.name} of container {end.attachment.container_id}"
        lost = [str(one) for one in host_addresses(end.routed) if one not in addresses[link.index]]
        if lost:
            yield Lack(end, "addresses", f"{whose} lost {', '.join(lost)}")
        own = [ip.address.ip for ip in end.routed if owners[ip.address.ip] is end]
        unreachable = [str(one) for one in own if (link.index, ip_network(one)) not in ways]
        if unreachable:
            yield Lack(end, "routes", f"the host has no route to {', '.join(unreachable)} through {whose}")


def _addresses(links: Links) -> Mapping[int, set[Interface]]:
    found: dict[int, set[Interface]] = defaultdict(set)
    answer = links.netlink.ask(Request(messages.dump_addresses().fill(index=bytes(4)), "list the addresses"))[0]
    for message in answer.messages:
        found[struct.unpack_from("=I", message, 20)[0]].add(parse_address(message))
    return found


def _masquerading(ends: Iterable[HostEnd], netlink: Netlink) -> Iterator[Lack]:
    wanted = [(end, one) for end in ends for one in end.masqueraded]
    present = {(one.network, one.key) for one in Masquerade(netlink).entries("")} if wanted else set()
    for end, one in wanted:
        if (one.network, one.key) not in present:
            whose = f"address {one.address} of container {end.attachment.container_id}"
            yield Lack(end, "masquerading", f"{whose} is not masqueraded")


def _checks(ends: Iterable[HostEnd], netlink: Netlink) -> Iterator[Lack]:
    checked = [end for end in ends if end.checked_mac]
    spoof = SpoofCheck(netlink)
    hooked = spoof.hooked() if checked else []
    for end in checked:
        for text in spoof.differences(end.attachment, end.attachment.host_veth, end.checked_mac, hooked):
            yield Lack(end, "checks", text)


def restore(found: Collection[Lack], links: Links) -> None:
    """Give back what attachments lack; the calling thread is in the host's namespace.

    Raises:
        PluginError: others keep changing the rules.
        OSError: the kernel refuses.
    """
    for end in {one.end.attachment: one.end for one in found if one.kind == "flags"}.values():
        _mark(end, links)
    for end in {one.end.attachment: one.end for one in found if one.kind in {"addresses", "routes"}}.values():
        outside = links.get(end.attachment.host_veth)
        if outside is not None:
            configure_host_end(links, outside, end.routed)
    rules = {one.end.attachment: one.end for one in found if one.kind in {"masquerading", "checks"}}.values()
    if rules:
        with open_nft() as netlink:
            Masquerade(netlink).mend([element for end in rules for element in end.masqueraded])
            spoof = SpoofCheck(netlink)
            for end in rules:
                if end.checked_mac:
                    spoof.restore(end.attachment, end.attachment.host_veth, end.checked_mac)


def _mark(end: HostEnd, links: Links) -> None:
    if end.flags is not None:
        name = end.attachment.host_veth
        mark = messages.mark_port(hairpin=end.flags[0], isolated=end.flags[1])
        data = mark.fill(name=name.encode(), label=end.attachment.label.encode())
        links.netlink.ask(Request(data, f"mark interface {name}"))
