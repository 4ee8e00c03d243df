"""Transactions of nf_tables over a socket.

Owns: sending one, and the generation of the rule set, by which a change in between is noticed.
Refuses: what a transaction is about.
"""

import errno
from collections.abc import Callable, Sequence
from typing import Final

from nodeplug_net.netlink.connection import ENOENT, KernelReply, Netlink, Request, attributes, failure
from nodeplug_net.nftables.encoding import begin, end, get_generation

ABSENT: Final = ENOENT | {errno.EINVAL}
"""No table, or (EINVAL) a kernel without nf_tables: there is nothing to list or to remove."""
BODY: Final = 20
"""Bytes before the attributes of a message: the netlink header and struct nfgenmsg."""
_ATTEMPTS: Final = 50
_GENERATION: Final = slice(18, 20)  # nfgenmsg.res_id
_GEN_ID: Final = 1  # NFTA_GEN_ID


def commit(netlink: Netlink, messages: Sequence[bytearray], generation: int | None = None) -> KernelReply | None:
    """Send one transaction; return the first error, or None.

    Args:
        netlink: a socket of nf_tables.
        messages: what to change.
        generation: refuse (ERESTART) if any table has changed since.

    Raises:
        OSError: the socket fails.
    """
    answers = netlink.exchange([(begin(generation), False), *((one, True) for one in messages), (end(), False)])
    return next((answer for answer in answers if answer.error), None)


def dump(netlink: Netlink, request: Callable[[], bytearray], what: str) -> list[bytes]:
    """List something, all of one generation; nothing where it does not exist.

    A long list comes in parts, and each part skips as many entries as were sent before it: if some of those are removed
    meanwhile, as many others are missing, and a DEL would leave its own behind. The kernel does not mark such a list
    (NLM_F_DUMP_INTR), but each message carries the generation of the rule set.

    Args:
        netlink: a socket of nf_tables.
        request: returns the message that asks.
        what: the request, for the text of an error.

    Raises:
        OSError: the kernel refuses; EAGAIN, it keeps changing.
    """
    for _ in range(_ATTEMPTS):
        messages = netlink.ask(Request(request(), what, ABSENT))[0].messages
        if len({message[_GENERATION] for message in messages}) <= 1:
            return messages
    raise failure(what, KernelReply(errno.EAGAIN))


def generation_of(netlink: Netlink) -> int | None:
    """Return the generation of the rule set; None if the kernel does not say."""
    messages = netlink.ask(Request(get_generation(), "read the generation of nf_tables", ABSENT))[0].messages
    for message in messages:
        for kind, start, end_of in attributes(message, BODY):
            if kind == _GEN_ID:
                return int.from_bytes(message[start:end_of], "big")
    return None
