"""A netlink socket and nothing more: send encoded requests, read the replies, report errors.

Owns: sequence numbers, acknowledgements, end of dumps, and the kernel's error texts (netlink(7),
NETLINK_EXT_ACK). One socket belongs to one call; opening one costs about ten microseconds, so none is kept.
Refuses: to know any message (see `messages`), threads (a socket has one user at a time), and to wait: the kernel
queues every reply before send(2) returns, so a missing reply will never come.
"""

import errno
import os
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final, Self

_SOL_NETLINK: Final = 270
_OPTIONS: Final = (10, 11, 12)
"""NETLINK_CAP_ACK (acknowledgements carry no payload), NETLINK_EXT_ACK (error texts), NETLINK_GET_STRICT_CHK (filtered
dumps). A kernel without one of them returns ENOPROTOOPT and works as before."""
_NLMSG_ERROR: Final = 2
_NLMSG_DONE: Final = 3
_NLM_F_MULTI: Final = 0x2
_NLM_F_ACK: Final = 0x4
_NLM_F_ACK_TLVS: Final = 0x200
_FLAGS: Final = 6
"""Where they are in a message; as all that is read of them there, their lower byte."""
_NLMSGERR_ATTR_MSG: Final = 1
_RECEIVE: Final = 65536
_USUAL: Final = 200
"""Messages that fit into the buffers of any socket, with their acknowledgements."""
_PER_MESSAGE: Final = 2048
_SO_SNDBUFFORCE: Final = 32
_SO_RCVBUFFORCE: Final = 33
_HEADER: Final = struct.Struct("=IHHII")
_ATTRIBUTE: Final = struct.Struct("=HH")
NESTED: Final = 0x3FFF
"""Mask that removes NLA_F_NESTED and NLA_F_NET_BYTEORDER from an attribute type."""

_LOST: Final = (
    "the kernel had no room for its answer to a netlink request, which may be done all the same; "
    "free memory or raise net.core.rmem_default, and try again"
)

EEXIST: Final = frozenset({errno.EEXIST})
ENODEV: Final = frozenset({errno.ENODEV})
ENOENT: Final = frozenset({errno.ENOENT})
ESRCH: Final = frozenset({errno.ESRCH})


@dataclass(slots=True)
class Request:
    """One encoded message.

    Attributes:
        data: the message; its sequence number is written by the socket. It must ask for NLM_F_ACK, be a dump, or be
            answered by one message.
        what: the request, for the text of an error: "set bridge cni0 up"; or what composes it, where that takes time.
        accept: errno values that are not a failure.
    """

    data: bytearray
    what: str | Callable[[], str]
    accept: frozenset[int] = frozenset()


@dataclass(slots=True)
class KernelReply:
    """The kernel's reply to one request: an accepted errno or 0, and the messages before the acknowledgement."""

    error: int = 0
    messages: list[bytes] = field(default_factory=list)
    text: str = ""
    complete: bool = False
    acknowledged: bool = True


def attributes(message: bytes, start: int, end: int | None = None) -> Iterator[tuple[int, int, int]]:
    """Walk the attributes of a message.

    Yields:
        Type without flags, offset of the payload, offset after the payload.
    """
    stop = len(message) if end is None else end
    while start + 4 <= stop:
        length, kind = _ATTRIBUTE.unpack_from(message, start)
        if length < 4:
            return
        yield kind & NESTED, start + 4, start + length
        start += (length + 3) & ~3


def text(message: bytes, start: int, end: int) -> str:
    """Decode a string attribute up to its NUL."""
    return message[start:end].partition(b"\0")[0].decode("utf-8", "replace")


class Netlink:
    """One socket, in the network namespace of the thread that opens it, even if that thread leaves it."""

    __slots__ = ("_sequence", "_socket")

    def __init__(self, protocol: int = socket.NETLINK_ROUTE) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, protocol)
        self._sequence = 0
        for option in _OPTIONS:
            try:
                self._socket.setsockopt(_SOL_NETLINK, option, 1)
            except OSError as error:
                if error.errno != errno.ENOPROTOOPT:
                    self._socket.close()
                    raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the socket."""
        self._socket.close()

    def bind(self) -> int:
        """Have the kernel give the socket its address now, and return it (netlink(7), nl_pid)."""
        self._socket.bind((0, 0))
        return int(self._socket.getsockname()[0])

    def ask(self, *requests: Request) -> list[KernelReply]:
        """Send requests at once and read every reply.

        The kernel processes all of them, even after one that fails.

        Returns:
            One reply per request, in order; none for none.

        Raises:
            OSError: the first error that its request does not accept: the kernel's errno and the request; ENOBUFS, an
                answer was lost (netlink(7)), so that what was asked for may be done.
        """
        if not requests:
            return []
        answers = self.exchange([(request.data, True) for request in requests])
        for request, answer in zip(requests, answers, strict=True):
            if answer.error and answer.error not in request.accept:
                raise failure(request.what, answer)
        return answers

    def exchange(self, messages: Sequence[tuple[bytearray, bool]]) -> list[KernelReply]:
        """Send messages at once; the flag says whether a reply is expected (not for batch markers of nf_tables).

        Raises:
            OSError: the socket fails, or a reply is missing.
        """
        first = self._sequence + 1
        for offset, (data, _) in enumerate(messages):
            struct.pack_into("=I", data, 8, first + offset)
        self._sequence += len(messages)
        if len(messages) > _USUAL:
            self._make_room(len(messages) * _PER_MESSAGE)
        self._socket.send(b"".join(data for data, _ in messages))
        answers = [
            KernelReply(complete=not due, acknowledged=bool(data[_FLAGS] & _NLM_F_ACK)) for data, due in messages
        ]
        # A transaction that is refused at its start, for its generation, is not processed further.
        while not all(answer.complete for answer in answers) and (messages[0][1] or not answers[0].error):
            self._receive(answers, first)
        return answers

    def _make_room(self, size: int) -> None:
        """Enlarge the buffers as nft(8) does; without CAP_NET_ADMIN (socket(7)) the defaults stay."""
        for option in (_SO_SNDBUFFORCE, _SO_RCVBUFFORCE):
            with suppress(PermissionError):
                self._socket.setsockopt(socket.SOL_SOCKET, option, size)

    def _receive(self, answers: list[KernelReply], first: int) -> None:
        try:
            data = self._socket.recv(_RECEIVE, socket.MSG_DONTWAIT)
        except BlockingIOError as error:
            raise OSError(errno.EPROTO, "the kernel left a netlink request unanswered") from error
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise
            self._drain()
            raise OSError(errno.ENOBUFS, _LOST) from error
        position = 0
        while position + 16 <= len(data):
            length, kind, flags, sequence, _ = _HEADER.unpack_from(data, position)
            if length < 16:
                return
            if 0 <= sequence - first < len(answers):
                _take(answers[sequence - first], kind, flags, data[position : position + length])
            position += (length + 3) & ~3

    def _drain(self) -> None:
        """Empty the queue: until then the kernel drops every further answer, also those to what undoes a call."""
        with suppress(BlockingIOError):
            while True:
                self._socket.recv(_RECEIVE, socket.MSG_DONTWAIT)


def _take(answer: KernelReply, kind: int, flags: int, message: bytes) -> None:
    if kind not in {_NLMSG_ERROR, _NLMSG_DONE}:
        answer.messages.append(message)
        answer.complete = not (answer.acknowledged or flags & _NLM_F_MULTI)
        return
    answer.complete = True
    code = struct.unpack_from("=i", message, 16)[0] if len(message) >= 20 else 0
    if code < 0:
        answer.error = -code
        answer.text = _extended(kind, flags, message)


def _extended(kind: int, flags: int, message: bytes) -> str:
    """Return the kernel's text of an error, or nothing (NLMSGERR_ATTR_MSG)."""
    if kind != _NLMSG_ERROR or not flags & _NLM_F_ACK_TLVS:
        return ""
    for attribute, start, end in attributes(message, 36):  # header 16, errno 4, the request's header 16
        if attribute == _NLMSGERR_ATTR_MSG:
            return text(message, start, end)
    return ""


def failure(what: str | Callable[[], str], answer: KernelReply) -> OSError:
    """Build the error of a refused request: errno, the request, and the kernel's text if there is one."""
    words = os.strerror(answer.error)
    what = what if isinstance(what, str) else what()
    return OSError(answer.error, f"cannot {what}: {words}" + (f" ({answer.text})" if answer.text else ""))
