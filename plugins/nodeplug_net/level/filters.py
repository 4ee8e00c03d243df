"""Which of what the kernel tells never wakes the observer: programs that the kernel runs before it queues a message.

Owns: two filters of sockets (socket(7), SO_ATTACH_FILTER), one for the observer's own namespace and one for all others.
Refuses: to say what is damage, which takes names and numbers (`events`): a filter drops what nobody could ask about.

An ADD causes a dozen messages, each with sixty attributes, and every one that is read keeps calls from running. Of
those that it causes where ports have no flags, none passes.
"""

import ctypes
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug_net.attachment import OURS
from nodeplug_net.netlink.messages import IFF_UP

NEWLINK: Final = 16
DELLINK: Final = 17
DELADDR: Final = 21
NEWROUTE: Final = 24
DELROUTE: Final = 25
DELRULE: Final = 33
DELQDISC: Final = 37
DELTFILTER: Final = 45
NEWNETCONF: Final = 80
AF_BRIDGE: Final = 7
IFLA_MASTER: Final = 10
IFLA_PROTINFO: Final = 12
IFLA_LINKINFO: Final = 18
IFLA_IFALIAS: Final = 20
INFO_SLAVE_DATA: Final = 5
BRPORT_MODE: Final = 4
BRPORT_ISOLATED: Final = 33
NETCONF_IFINDEX: Final = 1
LINK_BODY: Final = 32
NETCONF_BODY: Final = 20
"""Where the attributes of messages about links and about settings begin."""
_TYPE: Final = 4
_MESSAGE_FLAGS: Final = 6
_FAMILY: Final = 16
_ROUTE_TYPE: Final = 23
_LINK_FLAGS: Final = 24
_LINK_CHANGE: Final = 28
_EVERYTHING: Final = 0xFFFFFFFF
"""As the flags that changed (ifi_change): the interface is new here. As an interface (NETCONFA_IFINDEX_ALL): all."""
_UNICAST: Final = 1
"""What is compared of routes: the kernel itself makes those of other types (RTN_LOCAL), and they go with addresses."""
_REPLACE: Final = 0x100  # NLM_F_REPLACE
_SO_ATTACH_FILTER: Final = 26
_ATTRIBUTE_IN_MESSAGE: Final = 0xFFFFF00C  # SKF_AD_OFF + SKF_AD_NLATTR
_ATTRIBUTE_IN_ATTRIBUTE: Final = 0xFFFFF010  # SKF_AD_OFF + SKF_AD_NLATTR_NEST
_KEEP: Final = "keep"
_DROP: Final = "drop"


@dataclass(frozen=True, slots=True)
class Step:
    """One instruction (struct sock_filter) of linux/filter.h; `yes` and `no` are labels, empty for the next one."""

    code: int
    value: int = 0
    yes: str = ""
    no: str = ""


Program = Sequence[Step | str]
"""Instructions, with labels between them. What comes to the end is dropped."""


def _byte(offset: int) -> Step:
    return Step(0x30, offset)


def _half(offset: int) -> Step:
    return Step(0x28, offset)


def _word(offset: int) -> Step:
    return Step(0x20, offset)


def _is(value: int, yes: str, no: str = "") -> Step:
    return Step(0x15, value, yes, no)


def _has(bits: int, yes: str, no: str = "") -> Step:
    return Step(0x45, bits, yes, no)


def _find(start: int, attribute: int) -> Program:
    """Find an attribute of the message, from a byte on; 0 if it is not there."""
    return (Step(0x00, start), Step(0x01, attribute), _word(_ATTRIBUTE_IN_MESSAGE))


def _find_inside(attribute: int) -> Program:
    """Find an attribute within the one that was found."""
    return (Step(0x01, attribute), _word(_ATTRIBUTE_IN_ATTRIBUTE))


_TO_PAYLOAD: Final = Step(0x07)
"""What was found becomes the base of `_PAYLOAD_WORD` and `_PAYLOAD_BYTE`."""
_PAYLOAD_WORD: Final = Step(0x40, 4)
_PAYLOAD_BYTE: Final = Step(0x50, 4)
_REMEMBER: Final = Step(0x02)
_RECALL: Final = Step(0x60)


def _kind(number: int) -> int:
    """Return a number of 16 bits as a filter sees it: in host order, as if it were in network order."""
    return socket.htons(number)


def damage(*, all_flags: bool) -> Program:
    """Let pass what may be damage in the observer's own namespace.

    Args:
        all_flags: whether a port that has neither hairpin mode nor isolation may be damaged, because it is to have one.
    """
    return (
        _half(_TYPE),
        _is(_kind(NEWLINK), "link"),
        _is(_kind(DELLINK), "gone"),
        _is(_kind(NEWNETCONF), "setting"),
        _is(_kind(DELROUTE), "route"),
        *(_is(_kind(kind), _KEEP) for kind in (DELADDR, DELQDISC)),
        _is(_kind(DELTFILTER), _KEEP, _DROP),
        "route",
        _byte(_ROUTE_TYPE),
        _is(_UNICAST, _KEEP, _DROP),
        "gone",
        _byte(_FAMILY),
        _is(AF_BRIDGE, _DROP, _KEEP),  # of a port, which the message about the link tells too
        "setting",
        *_find(NETCONF_BODY, NETCONF_IFINDEX),
        _TO_PAYLOAD,
        _PAYLOAD_WORD,
        _is(_EVERYTHING, _KEEP, _DROP),
        "link",
        _byte(_FAMILY),
        _is(AF_BRIDGE, "port"),
        _word(_LINK_FLAGS),
        _has(socket.htonl(IFF_UP), "", _KEEP),
        *_find(LINK_BODY, IFLA_MASTER),
        _is(0, "", "enslaved"),
        *_find(LINK_BODY, IFLA_IFALIAS),
        _is(0, _DROP),
        _TO_PAYLOAD,
        _PAYLOAD_WORD,
        _is(int.from_bytes(OURS.encode()[:4], "big"), _KEEP, _DROP),
        "enslaved",
        *_find(LINK_BODY, IFLA_LINKINFO),
        _is(0, _DROP),
        *_find_inside(INFO_SLAVE_DATA),
        _is(0, _DROP, _KEEP if all_flags else "flags"),
        "port",
        *_find(LINK_BODY, IFLA_PROTINFO),
        _is(0, _DROP, _KEEP if all_flags else "flags"),
        "flags",
        _REMEMBER,
        *_find_inside(BRPORT_MODE),
        _is(0, _DROP),
        _TO_PAYLOAD,
        _PAYLOAD_BYTE,
        _is(0, "", _KEEP),
        _RECALL,
        *_find_inside(BRPORT_ISOLATED),
        _is(0, _DROP),
        _TO_PAYLOAD,
        _PAYLOAD_BYTE,
        _is(0, _DROP, _KEEP),
    )


def losses() -> Program:
    """Let pass what ends in another namespace, a link that was set down, and a route in place of another."""
    return (
        _half(_TYPE),
        *(_is(_kind(kind), _KEEP) for kind in (DELADDR, DELRULE)),
        _is(_kind(DELLINK), "gone"),
        _is(_kind(DELROUTE), "lost route"),
        _is(_kind(NEWLINK), "link"),
        _is(_kind(NEWROUTE), "new route", _DROP),
        "gone",
        _byte(_FAMILY),
        _is(AF_BRIDGE, _DROP, _KEEP),
        "lost route",
        _byte(_ROUTE_TYPE),
        _is(_UNICAST, _KEEP, _DROP),
        "link",
        _byte(_FAMILY),
        _is(AF_BRIDGE, _DROP),
        _word(_LINK_FLAGS),
        _has(socket.htonl(IFF_UP), _DROP),
        _word(_LINK_CHANGE),
        _is(_EVERYTHING, _DROP, _KEEP),
        "new route",
        _half(_MESSAGE_FLAGS),
        _has(_kind(_REPLACE), _KEEP),
    )


def _assembled(program: Program) -> bytes:
    every = (*program, _DROP, Step(0x06, 0), _KEEP, Step(0x06, 0xFFFFFFFF))
    places: dict[str, int] = {}
    steps: list[Step] = []
    for one in every:
        if isinstance(one, str):
            places[one] = len(steps)
        else:
            steps.append(one)

    def distance(label: str, number: int) -> int:
        return places[label] - number - 1 if label else 0

    return b"".join(
        struct.pack("=HBBI", one.code, distance(one.yes, number), distance(one.no, number), one.value)
        for number, one in enumerate(steps)
    )


def attach(opened: socket.socket, program: Program) -> None:
    """Let the kernel drop messages before a thread is woken; in place of an earlier program.

    Raises:
        OSError: the kernel refuses it.
    """
    code = _assembled(program)
    buffer = ctypes.create_string_buffer(code)
    opened.setsockopt(
        socket.SOL_SOCKET, _SO_ATTACH_FILTER, struct.pack("@HP", len(code) // 8, ctypes.addressof(buffer))
    )
