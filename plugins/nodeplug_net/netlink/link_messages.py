"""rtnetlink messages that make links of any kind, and change what a kind does not matter for.

Owns: NEWLINK with the attributes that differ by kind, written directly: a creation is sent once per ADD, and pyroute2
does not know all of these attributes.
Refuses: everything that is sent often (see `messages`).
"""

import struct
from typing import Final

from nodeplug_net.netlink.messages import RTM_NEWLINK, mac_bytes, u32

_ASK: Final = 0x5  # NLM_F_REQUEST | NLM_F_ACK
_CREATE: Final = 0x605  # and NLM_F_CREATE | NLM_F_EXCL
_IFLA_ADDRESS: Final = 1
_IFLA_IFNAME: Final = 3
_IFLA_MTU: Final = 4
_IFLA_LINK: Final = 5
_IFLA_LINKINFO: Final = 18
_IFLA_IFALIAS: Final = 20
_IFLA_NET_NS_FD: Final = 28
_IFLA_INFO_KIND: Final = 1
_IFLA_INFO_DATA: Final = 2


def create_link(
    kind: str,
    name: str,
    *,
    data: bytes = b"",
    parent: int | None = None,
    netns: int | None = None,
    mac: str = "",
    mtu: int = 0,
) -> bytearray:
    """NEWLINK of a link that must not exist.

    Args:
        kind: as ip-link(8) names it.
        name: of the link.
        data: attributes of that kind, encoded.
        parent: the index of the link below it.
        netns: a descriptor of the namespace where it is made.
        mac: its hardware address, or empty.
        mtu: bytes; 0 leaves it to the kernel.
    """
    attrs = b"" if parent is None else attribute(_IFLA_LINK, u32(parent))
    attrs += attribute(_IFLA_IFNAME, name.encode() + b"\0")
    if mtu:
        attrs += attribute(_IFLA_MTU, u32(mtu))
    if mac:
        attrs += attribute(_IFLA_ADDRESS, mac_bytes(mac))
    if netns is not None:
        attrs += attribute(_IFLA_NET_NS_FD, u32(netns))
    info = attribute(_IFLA_INFO_KIND, kind.encode())
    if data:
        info += attribute(_IFLA_INFO_DATA, data)
    return _link(_CREATE, 0, attrs + attribute(_IFLA_LINKINFO, info))


def name_link(index: int, name: str, label: str) -> bytearray:
    """NEWLINK that gives link `index` its name and its alias, both or none."""
    attrs = attribute(_IFLA_IFNAME, name.encode() + b"\0") + attribute(_IFLA_IFALIAS, label.encode())
    return _link(_ASK, index, attrs)


def label_link(index: int, label: str) -> bytearray:
    """NEWLINK that gives link `index` its alias."""
    return _link(_ASK, index, attribute(_IFLA_IFALIAS, label.encode()))


def change_link(index: int, attrs: bytes = b"", *, flags: int = 0, change: int = 0) -> bytearray:
    """NEWLINK that changes attributes of link `index`, and the interface flags of `change` to `flags`."""
    return _link(_ASK, index, attrs, flags, change)


def attribute(kind: int, payload: bytes) -> bytes:
    """Encode one attribute (struct nlattr), padded."""
    length = len(payload) + 4
    return struct.pack("=HH", length, kind) + payload + bytes(-length % 4)


def _link(flags: int, index: int, attrs: bytes, link_flags: int = 0, change: int = 0) -> bytearray:
    """Write struct nlmsghdr and struct ifinfomsg before the attributes."""
    header = struct.pack("=IHHII", 32 + len(attrs), RTM_NEWLINK, flags, 0, 0)
    return bytearray(header + struct.pack("=BxHiII", 0, 0, index, link_flags, change) + attrs)
