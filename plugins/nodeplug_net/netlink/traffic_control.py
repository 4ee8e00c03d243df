"""Traffic control messages: queueing disciplines, classes and filters, written and read.

Owns: RTM_NEWQDISC, RTM_NEWTCLASS and RTM_NEWTFILTER with the attributes of tbf, htb, bfifo, fq_codel, u32 and mirred
(linux/pkt_sched.h, linux/pkt_cls.h), and the reading of what a dump says of them.
Refuses: what is to be shaped, and by how much. Messages are written directly: they are sent once per ADD.
"""

import errno
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Final

from nodeplug_net.netlink.connection import Netlink, Request, attributes, text
from nodeplug_net.netlink.link_messages import attribute

ROOT: Final = 0xFFFFFFFF  # TC_H_ROOT
INGRESS: Final = 0xFFFFFFF1  # TC_H_INGRESS
FIRST: Final = 0x10000
"""The handle `1:`, that of the qdisc at the root of a link."""
SHAPED: Final = 0x10001
"""`1:1`, its class that is limited."""
_INGRESS_HANDLE: Final = 0xFFFF0000
_NEWQDISC: Final = 36
_DELQDISC: Final = 37
_GETQDISC: Final = 38
_NEWTCLASS: Final = 40
_GETTCLASS: Final = 42
_NEWTFILTER: Final = 44
_GETTFILTER: Final = 46
_ASK: Final = 0x5  # NLM_F_REQUEST | NLM_F_ACK
_DUMP: Final = 0x301
_CREATE: Final = 0x605  # NLM_F_CREATE | NLM_F_EXCL
_TCMSG: Final = struct.Struct("=BxHiIII")
_BODY: Final = 16 + _TCMSG.size
_TCA_KIND: Final = 1
_TCA_OPTIONS: Final = 2
_PARMS: Final = 1  # TCA_TBF_PARMS and TCA_HTB_PARMS
_TBF_RATE64: Final = 4
_HTB_INIT: Final = 2
_HTB_RATE64: Final = 6
_HTB_CEIL64: Final = 7
_FQ_CODEL_TARGET: Final = 1
_FQ_CODEL_INTERVAL: Final = 3
_U32_CLASSID: Final = 1
_U32_SEL: Final = 5
_U32_ACT: Final = 7
_MIRRED_PARMS: Final = 2
_ACT_STOLEN: Final = 4
_EGRESS_REDIR: Final = 1
_U32_TERMINAL: Final = 1
_U32_MAX: Final = 0xFFFFFFFF
_ETH_P_IP: Final = 0x0800
_ETH_P_IPV6: Final = 0x86DD
_ETH_P_ALL: Final = 0x0003
_SPEC: Final = struct.Struct("=BBHhHI")
"""struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate."""
_TBF_QOPT: Final = struct.Struct("=12s12sIII")
_HTB_OPT: Final = struct.Struct("=12s12sIIIII")
_ABSENT: Final = frozenset({errno.ENOENT, errno.EINVAL})
"""What DELQDISC says of a qdisc that is not there, or of another kind."""
UNKNOWN_KIND: Final = frozenset({errno.ENOENT})
"""The kernel has no such qdisc, and finds no module."""

Subnet = IPv4Network | IPv6Network


@dataclass(frozen=True, slots=True)
class Rate:
    """A token bucket.

    Attributes:
        speed: bytes a second.
        buffer: the burst, in ticks of psched at that speed.
        limit: bytes that may wait.
    """

    speed: int
    buffer: int
    limit: int


@dataclass(frozen=True, slots=True)
class Qdisc:
    """A qdisc of a link, or a class of it, as the kernel describes it.

    Attributes:
        rate: of tbf, or of a class of htb, whose limit is its queue's and 0 here.
    """

    index: int
    kind: str
    handle: int
    parent: int
    rate: Rate | None = None


def add_tbf(index: int, rate: Rate) -> bytearray:
    """NEWQDISC of a token bucket at the root of link `index`."""
    parameters = _TBF_QOPT.pack(_spec(rate.speed), bytes(12), rate.limit, rate.buffer, 0)
    options = attribute(_PARMS, parameters) + _wide(_TBF_RATE64, rate.speed)
    return _message(_NEWQDISC, _CREATE, index, FIRST, ROOT, 0, "tbf", options)


def add_htb(index: int, *, default: int) -> bytearray:
    """NEWQDISC of htb at the root; what no filter classifies goes to class `1:<default>`, or is not limited at all."""
    options = attribute(_HTB_INIT, struct.pack("=IIIII", 3, 10, default, 0, 0))
    return _message(_NEWQDISC, _CREATE, index, FIRST, ROOT, 0, "htb", options)


def add_shaped_class(index: int, rate: Rate, quantum: int) -> bytearray:
    """NEWTCLASS of the class `1:1` of htb."""
    spec = _spec(rate.speed)
    parameters = _HTB_OPT.pack(spec, spec, rate.buffer, rate.buffer, quantum, 0, 0)
    options = attribute(_PARMS, parameters) + _wide(_HTB_RATE64, rate.speed) + _wide(_HTB_CEIL64, rate.speed)
    return _message(_NEWTCLASS, _CREATE, index, SHAPED, FIRST, 0, "htb", options)


def add_queue(index: int, limit: int) -> bytearray:
    """NEWQDISC of the queue before the limit: a fifo of so many bytes."""
    return _message(_NEWQDISC, _CREATE, index, 0, SHAPED, 0, "bfifo", struct.pack("=I", limit))


def add_fair_queue(index: int, target: int, interval: int) -> bytearray:
    """NEWQDISC of the queue before the limit: fq_codel, with its two times in microseconds."""
    options = attribute(_FQ_CODEL_TARGET, struct.pack("=I", target))
    options += attribute(_FQ_CODEL_INTERVAL, struct.pack("=I", interval))
    return _message(_NEWQDISC, _CREATE, index, 0, SHAPED, 0, "fq_codel", options)


def add_ingress(index: int) -> bytearray:
    """NEWQDISC of what filters packets that link `index` receives."""
    return _message(_NEWQDISC, _CREATE, index, _INGRESS_HANDLE, INGRESS, 0, "ingress", b"")


def delete_root(index: int, kind: str) -> bytearray:
    """DELQDISC of the qdisc `1:` at the root, if it is of that kind."""
    return _message(_DELQDISC, _ASK, index, FIRST, ROOT, 0, kind, None)


def delete_ingress(index: int) -> bytearray:
    """DELQDISC of `ingress`, with its filters; never of `clsact`, which is somebody else's."""
    return _message(_DELQDISC, _ASK, index, _INGRESS_HANDLE, INGRESS, 0, "ingress", None)


def redirect(index: int, target: int, priority: int, subnet: Subnet | None = None) -> bytearray:
    """NEWTFILTER: what link `index` receives, for a subnet or all, leaves through link `target` first."""
    parameters = struct.pack("=IIiiiiI", 0, 0, _ACT_STOLEN, 0, 0, _EGRESS_REDIR, target)
    action = attribute(1, b"mirred\0") + attribute(2, attribute(_MIRRED_PARMS, parameters))
    act = attribute(_U32_ACT, attribute(1, action))
    return _filter(index, _INGRESS_HANDLE, priority, subnet, SHAPED, act, destination=True)


def pass_unshaped(index: int, priority: int, subnet: Subnet) -> bytearray:
    """NEWTFILTER: what link `index` receives for a subnet goes its way, whatever later filters say."""
    return _filter(index, _INGRESS_HANDLE, priority, subnet, SHAPED, b"", destination=True)


def classify(index: int, flow: int, priority: int, subnet: Subnet) -> bytearray:
    """NEWTFILTER at htb: what comes from a subnet goes to the class `flow`; `1:` itself does not limit."""
    return _filter(index, FIRST, priority, subnet, flow, b"", destination=False)


def _filter(
    index: int, parent: int, priority: int, subnet: Subnet | None, flow: int, act: bytes, *, destination: bool
) -> bytearray:
    keys = [bytes(16)] if subnet is None else list(_keys(subnet, destination=destination))
    selector = struct.pack("=BBBxHHhhI", _U32_TERMINAL, 0, len(keys), 0, 0, 0, 0, 0)
    options = attribute(_U32_CLASSID, struct.pack("=I", flow))
    options += attribute(_U32_SEL, selector + b"".join(keys)) + act
    protocol = _ETH_P_ALL if subnet is None else _ETH_P_IP if subnet.version == 4 else _ETH_P_IPV6
    info = priority << 16 | struct.unpack("=H", struct.pack("!H", protocol))[0]
    return _message(_NEWTFILTER, _CREATE, index, 0, parent, info, "u32", options)


def _keys(subnet: Subnet, *, destination: bool) -> Iterator[bytes]:
    """Write struct tc_u32_key of each word of the address in the IP header that the prefix reaches."""
    address, mask = subnet.network_address.packed, subnet.netmask.packed
    first = {(4, False): 12, (4, True): 16, (6, False): 8, (6, True): 24}[subnet.version, destination]
    for word in range(0, max(4, (subnet.prefixlen + 31) // 32 * 4), 4):
        yield struct.pack("=4s4sii", mask[word : word + 4], address[word : word + 4], first + word, 0)


def _message(
    number: int, flags: int, index: int, handle: int, parent: int, info: int, kind: str, options: bytes | None
) -> bytearray:
    attrs = attribute(_TCA_KIND, kind.encode() + b"\0")
    if options is not None:
        attrs += attribute(_TCA_OPTIONS, options)
    header = struct.pack("=IHHII", _BODY + len(attrs), number, flags, 0, 0)
    return bytearray(header + _TCMSG.pack(0, 0, index, handle, parent, info) + attrs)


def _spec(speed: int) -> bytes:
    return _SPEC.pack(0, 0, 0, 0, 0, min(speed, _U32_MAX))


def _wide(kind: int, speed: int) -> bytes:
    return attribute(kind, struct.pack("=Q", speed)) if speed > _U32_MAX else b""


def absent_is_fine(data: bytearray, what: str) -> Request:
    """Build the request that deletes a qdisc, if there is one."""
    return Request(data, what, _ABSENT)


def qdiscs(netlink: Netlink, index: int, name: str) -> list[Qdisc]:
    """List the qdiscs of link `index`, and the class `1:1` of htb with its rate."""
    asked = [_dump(_GETQDISC, index, f"list the qdiscs of interface {name}")]
    found = [_parse(message) for message in netlink.ask(*asked)[0].messages]
    own = [one for one in found if one.index == index]
    if any(one.kind == "htb" for one in own):
        classes = netlink.ask(_dump(_GETTCLASS, index, f"list the classes of interface {name}"))[0]
        own += map(_parse, classes.messages)
    return own


def redirects_to(netlink: Netlink, index: int, name: str) -> set[int]:
    """Return the links to which filters redirect what link `index` receives."""
    asked = _dump(_GETTFILTER, index, f"list the filters of interface {name}", _INGRESS_HANDLE)
    asked.accept = _ABSENT
    found = set()
    for message in netlink.ask(asked)[0].messages:
        for options in _inner(message, [(_BODY, len(message))], _TCA_OPTIONS):
            for numbered in _inner(message, [options], _U32_ACT):
                actions = [(start, end) for _, start, end in attributes(message, *numbered)]
                for parameters in _inner(message, list(_inner(message, actions, 2)), _MIRRED_PARMS):
                    found.add(int(struct.unpack_from("=I", message, parameters[0] + 24)[0]))
    return found


def _inner(message: bytes, spans: list[tuple[int, int]], kind: int) -> Iterator[tuple[int, int]]:
    for span in spans:
        for number, start, end in attributes(message, *span):
            if number == kind:
                yield start, end


def _dump(number: int, index: int, what: str, parent: int = 0) -> Request:
    header = struct.pack("=IHHII", _BODY, number, _DUMP, 0, 0)
    return Request(bytearray(header + _TCMSG.pack(0, 0, index, 0, parent, 0)), what)


def _parse(message: bytes) -> Qdisc:
    """Read an RTM_NEWQDISC or RTM_NEWTCLASS message."""
    _, _, index, handle, parent, _ = _TCMSG.unpack_from(message, 16)
    kind, options = "", (0, 0)
    for number, start, end in attributes(message, _BODY):
        if number == _TCA_KIND:
            kind = text(message, start, end)
        elif number == _TCA_OPTIONS:
            options = start, end
    return Qdisc(index, kind, handle, parent, _rate(message, kind, options))


def _rate(message: bytes, kind: str, options: tuple[int, int]) -> Rate | None:
    if kind not in {"tbf", "htb"}:
        return None
    found = {number: (start, end) for number, start, end in attributes(message, *options)}
    if _PARMS not in found:
        return None
    start = found[_PARMS][0]
    wide = found.get(_TBF_RATE64 if kind == "tbf" else _HTB_RATE64)
    speed = struct.unpack_from("=Q", message, wide[0])[0] if wide else _SPEC.unpack_from(message, start)[5]
    if kind == "tbf":
        _, _, limit, buffer, _ = _TBF_QOPT.unpack_from(message, start)
        return Rate(speed, buffer, limit)
    return Rate(speed, _HTB_OPT.unpack_from(message, start)[2], 0)
