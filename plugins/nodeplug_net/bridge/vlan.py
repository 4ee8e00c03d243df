"""VLANs of a bridge (`vlan`, `vlanTrunk`): which a port is in, and the gateway's interface in one.

Owns: the messages about them, which pyroute2 has no short form of, and the order in which the reference's bridge sends
what they say: an identifier that is named twice is as its last mention.
Refuses: filtering, which is the kernel's, and switching it on for a bridge that others use without it.
"""

import errno
import os
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Final

from nodeplug import InvalidRequest, Netns, PluginError
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.config import BridgeConfig
from nodeplug_net.forwarding import prepare_gateway_interface
from nodeplug_net.netlink import messages
from nodeplug_net.netlink.connection import EEXIST, Request, attributes
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.netlink.messages import u32

_RTM_SETLINK: Final = 19
_ASK: Final = 0x5
_DUMP: Final = 0x301
_AF_BRIDGE: Final = 7
_HEADER: Final = struct.Struct("=IHHIIBBHiII")
"""struct nlmsghdr, struct ifinfomsg."""
_IFLA_AF_SPEC: Final = 26
_IFLA_EXT_MASK: Final = 29
_FILTER_VLANS: Final = 2  # RTEXT_FILTER_BRVLAN
_BRIDGE_FLAGS: Final = 0  # IFLA_BRIDGE_FLAGS
_MASTER: Final = 1  # BRIDGE_FLAGS_MASTER: the port of the bridge, not the interface itself
_VLAN_INFO: Final = 2  # IFLA_BRIDGE_VLAN_INFO
_PVID: Final = 0x2
_UNTAGGED: Final = 0x4
_RANGE_BEGIN: Final = 0x8
_RANGE_END: Final = 0x10
_NATIVE: Final = 1
_INFO: Final = struct.Struct("=HH")

Vlan = tuple[int, int]
"""Identifier and flags."""


def vlans_of(config: BridgeConfig) -> list[Vlan]:
    """List what a port is told, in the reference's order (setupVeth)."""
    found = [(config.vlan, _PVID | _UNTAGGED)] if config.vlan else []
    found += [(number, 0) for number in config.trunk]
    if config.trunk and not config.vlan:
        found.append((_NATIVE, _PVID | _UNTAGGED))
    return found


def add_vlans(index: int, vlans: Sequence[Vlan]) -> bytearray:
    """SETLINK that puts a port into VLANs; numbers that follow each other are one range."""
    return _of_port(_RTM_SETLINK, index, list(_ranges(vlans)))


def delete_vlans(index: int, numbers: Sequence[int]) -> bytearray:
    """DELLINK that takes a port out of VLANs; the port itself stays."""
    return _of_port(messages.RTM_DELLINK, index, [(number, 0) for number in numbers])


def _ranges(vlans: Sequence[Vlan]) -> Iterator[Vlan]:
    start = 0
    for place, (number, flags) in enumerate(vlans):
        following = vlans[place + 1] if place + 1 < len(vlans) else (0, 0)
        if flags == 0 and following == (number + 1, 0):
            continue
        first = vlans[start][0]
        if start == place:
            yield number, flags
        else:
            yield from ((first, flags | _RANGE_BEGIN), (number, flags | _RANGE_END))
        start = place + 1


def _of_port(kind: int, index: int, vlans: Sequence[Vlan]) -> bytearray:
    infos = b"".join(_attribute(_VLAN_INFO, _INFO.pack(flags, number)) for number, flags in vlans)
    spec = _attribute(_IFLA_AF_SPEC, _attribute(_BRIDGE_FLAGS, struct.pack("=H", _MASTER)) + infos)
    return bytearray(_HEADER.pack(_HEADER.size + len(spec), kind, _ASK, 0, 0, _AF_BRIDGE, 0, 0, index, 0, 0) + spec)


def _attribute(kind: int, data: bytes) -> bytes:
    return struct.pack("=HH", 4 + len(data), kind) + data.ljust((len(data) + 3) & ~3, b"\0")


@cache
def _dump() -> bytes:
    mask = _attribute(_IFLA_EXT_MASK, u32(_FILTER_VLANS))
    size = _HEADER.size + len(mask)
    return _HEADER.pack(size, messages.RTM_GETLINK, _DUMP, 0, 0, _AF_BRIDGE, 0, 0, 0, 0, 0) + mask


def parse_vlans(message: bytes) -> dict[int, int]:
    """Read in which VLANs a port is, with what flags, from an RTM_NEWLINK message of family AF_BRIDGE."""
    found = {}
    for kind, start, end in attributes(message, _HEADER.size):
        if kind == _IFLA_AF_SPEC:
            for inner, first, last in attributes(message, start, end):
                if inner == _VLAN_INFO:
                    flags, number = _INFO.unpack(message[first:last])
                    found[number] = flags
    return found


def port_vlans(links: Links, port: Link) -> dict[int, int]:
    """List in which VLANs a port is, with what flags.

    Raises:
        OSError: the kernel refuses.
    """
    answer = links.netlink.ask(Request(bytearray(_dump()), "list the VLANs of ports"))[0]
    mine = (one for one in answer.messages if struct.unpack_from("=i", one, 20)[0] == port.index)
    return {number: flags for one in mine for number, flags in parse_vlans(one).items()}


def put_into_vlans(links: Links, bridge: Link, name: str, vlans: Sequence[Vlan], *, preserve_default: bool) -> None:
    """Put a port into its VLANs, and out of others unless these are to be preserved.

    Raises:
        InvalidRequest: the bridge does not filter.
        PluginError: the kernel cannot.
        OSError: the kernel refuses.
    """
    if bridge.filters_vlans is False:
        raise InvalidRequest(
            f"bridge {bridge.name} does not filter VLANs, so its containers would all be in one",
            details=f"choose another bridge, or run: ip link set {bridge.name} type bridge vlan_filtering 1",
        )
    port = links.get(name)
    if port is None:
        raise PluginError(f"interface {name} vanished during ADD")
    if not preserve_default:
        others = [number for number in port_vlans(links, port) if number not in dict(vlans)]
        if others:
            _ask(links, delete_vlans(port.index, others), f'failed to remove default vlan on interface "{name}"')
    _ask(links, add_vlans(port.index, vlans), f'failed to setup vlan tag on interface "{name}"')


def _ask(links: Links, data: bytearray, words: str) -> None:
    """Send in the reference's words."""
    answer = links.netlink.exchange([(data, True)])[0]
    if answer.error:
        why = answer.text
        if answer.error == errno.EOPNOTSUPP:
            why = "this kernel's bridges do not filter VLANs (CONFIG_BRIDGE_VLAN_FILTERING)"
        raise PluginError(f"{words}: {os.strerror(answer.error).lower()}", details=why)


def missing_vlans(links: Links, port: Link, vlans: Sequence[Vlan]) -> Iterator[str]:
    """Tell in which VLANs a port is not, or otherwise than its network says.

    Raises:
        OSError: the kernel refuses.
    """
    present = port_vlans(links, port)
    lost = [number for number, flags in dict(vlans).items() if present.get(number) != flags]
    if lost:
        yield f"port {port.name} lost {len(lost)} VLANs, such as {lost[0]}"


def ensure_gateway_interface(links: Links, bridge: Link, config: BridgeConfig, host: Netns) -> Link:
    """Find or create the interface that has the gateway's addresses in the VLAN: a pair whose other end is a port.

    As with the reference, it stays when the last container goes, as its bridge does.

    Args:
        links: of the host namespace.
        bridge: of the network.
        config: of a network with a VLAN.
        host: that namespace.

    Raises:
        InvalidRequest: its name would be too long, or the bridge does not filter.
        PluginError: the kernel cannot.
        OSError: the kernel refuses.
    """
    name = config.gateway_interface
    found = links.get(name)
    if found is None:
        if len(name.encode()) > messages.IFNAME_WIDTH:
            raise InvalidRequest(
                f"failed to create vlan interface: {name} has more than {messages.IFNAME_WIDTH} characters",
                details="choose a shorter name in key 'bridge'",
            )
        _create(links, bridge, config, name, host)
        prepare_gateway_interface(name)
        found = links.get(name)
    if found is None:
        raise PluginError(f"failed to create vlan interface: {name} vanished right after its creation; try again")
    if not found.is_up:
        links.set_up(found)
    return found


def _create(links: Links, bridge: Link, config: BridgeConfig, name: str, host: Netns) -> None:
    port = Attachment("", bridge.name, name).host_veth
    values = {"name": port.encode(), "peer": name.encode(), "netns": u32(host.fd), "master": u32(bridge.index)}
    data = messages.create_veth(mtu=True, mac=False).fill(**values, mtu=u32(bridge.mtu))
    links.netlink.ask(Request(data, f"create interface {name} with port {port} of bridge {bridge.name}", EEXIST))
    own = [(config.vlan, _PVID | _UNTAGGED)]
    try:
        put_into_vlans(links, bridge, port, own, preserve_default=config.preserve_default_vlan)
    except (OSError, PluginError):
        made = links.get(port)
        if made is not None:
            data = messages.delete_link().fill(index=u32(made.index))
            links.netlink.ask(Request(data, f"delete interface {port}"))
        raise
