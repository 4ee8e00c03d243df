"""The wire between the daemon and a worker.

Owns: messages on two kinds of sockets, their limits, and the descriptors that come with them (SCM_RIGHTS):

    control    one per worker, SOCK_SEQPACKET; a datagram is a head. It opens channels, and carries what has no answer.
    channel    one per call at a time, SOCK_STREAM; each end speaks in turn:
               u32 call | u32 head | u32 body | head: a JSON object | body: a JSON value of the contract

Numbers are little-endian: of the call on this channel, then byte counts. So the end of a process ends every call in it,
nobody has to sort answers, and a call that hangs keeps nobody else's bytes back.
Refuses: what a message means, threads, and time limits: who waits too long closes the socket.
"""

import os
import select
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from nodeplug.contract.discarding import discard
from nodeplug.contract.inputs import WORKER_MESSAGE, Input
from nodeplug.descriptors import ALL, receive
from nodeplug.worker.heads import read_head, write_head
from nodeplug.worker.incomplete import Incomplete

VERSION: Final = 2
"""Of the messages; both ends refuse another one."""
DATAGRAM: Final = 64 << 10
"""Bytes of a message on a control socket."""
_SIZES: Final = struct.Struct("<III")
_CALLS: Final = 0xFFFF_FFFF
_AHEAD: Final = 4
"""Bytes of a message that can be sent before the rest is known: the number of its call."""
_DESCRIPTORS: Final = 64
"""Descriptors that one message may bring."""
_SMALL: Final = 1 << 13
"""Bytes that are read at first; a message that has no more is small."""
_CHUNK: Final = 1 << 18
"""Bytes that are read at once of one that has more: room that is not used costs time, too."""
_FULL: Final = "no file descriptor was free"
UNASKED: Final = "it attached descriptors that nobody has asked for"
_MANY: Final = f"more than {_DESCRIPTORS} descriptors come with its message"
_AWAKE: Final = 300e-6 if len(os.sched_getaffinity(0)) > 1 else 0.0
"""Seconds in which a thread looks for a message again and again before it sleeps: most turns of a conversation are
shorter than it takes to wake an idle processor, at either end. Where there is one processor, the other end needs it."""


def of_another_release(worker: object, daemon: object) -> str:
    """Say that the two ends speak different versions."""
    return (
        f"its nodeplug speaks version {worker} of the wire and the daemon version {daemon}; install the release of the "
        "daemon there"
    )


class Broken(Exception):
    """The other end has sent what no end sends; the message says what."""

    @property
    def why(self) -> str:
        """The reason that is told when the process at the other end is killed for it."""
        return f"it broke the wire: {self}"


class Closed(Exception):
    """No message can be sent or received: the other end is gone, or this end was closed."""


class NoDescriptorLeft(Closed):
    """A message was lost: it came with descriptors, and this process may open no more files."""


@dataclass(slots=True)
class Message:
    """One message.

    Attributes:
        head: always with "op", which says what it is.
        body: a value of the contract in JSON; empty if there is none.
        descriptors: received ones belong to the receiver, and so do those in values that are read from it.
        limits: of the channel on which it came.
    """

    head: Mapping[str, Any]
    body: bytes = b""
    descriptors: list[int] = field(default_factory=list)
    limits: Input = WORKER_MESSAGE

    @property
    def op(self) -> str:
        """What the message is."""
        return str(self.head.get("op", ""))

    def text(self, name: str) -> str:
        """Return a text of the head; raise Broken if it has none of that name."""
        value = self.head.get(name)
        if not isinstance(value, str):
            raise Broken(f"its {self.op!r} has no text {name!r}")
        return value

    def close(self) -> None:
        """Close the descriptors of a message that was made here."""
        for descriptor in self.descriptors:
            os.close(descriptor)
        self.descriptors.clear()

    def discard(self) -> None:
        """Close the descriptors that came with it; see `nodeplug.contract.discarding`."""
        discard(self.descriptors)
        self.descriptors.clear()


class Channel:
    """One end of a channel. Used by one thread at a time; `shut` by any."""

    def __init__(
        self, end: socket.socket, limits: Input = WORKER_MESSAGE, incomplete: Incomplete | None = None
    ) -> None:
        self._end, self._limits, self._incomplete = end, limits, incomplete or Incomplete()
        self._call = 0
        self._ahead = 0
        """Bytes of the next message that have been sent."""
        self._data = bytearray()
        self._descriptors: list[int] = []
        self._unsent = memoryview(b"")
        self._poll = select.poll()
        self._poll.register(end.fileno(), select.POLLIN)

    def fileno(self) -> int:
        """Return the descriptor, to wait for messages."""
        return self._end.fileno()

    @classmethod
    def adopt(cls, descriptor: int, limits: Input = WORKER_MESSAGE, incomplete: Incomplete | None = None) -> Self:
        """Take over a descriptor that came with a message; raise Broken if it is no stream socket."""
        try:
            end = socket.socket(fileno=descriptor)
        except OSError:
            discard([descriptor])
            raise Broken("it opens a channel that is no socket") from None
        if end.family != socket.AF_UNIX or end.type != socket.SOCK_STREAM:
            discard([end.detach()])
            raise Broken("it opens a channel that is no stream socket")
        if limits.seconds:
            end.settimeout(limits.seconds)
        return cls(end, limits, incomplete)

    def send(self, message: Message, *, first: bool = False) -> None:
        """Send a message, however long the other end takes to read it; raise Closed if it is gone.

        The `first` of a call makes every earlier one unanswerable.
        """
        self._send(message, first, 0)
        self.flush()

    def send_at_once(self, message: Message) -> bool:
        """Send the first message of a call as far as the other end has room; return whether that was all of it.

        Never waits: `flush` sends the rest. Raise Closed if the other end is gone, Broken if it has not even read what
        came before.
        """
        self._send(message, True, socket.MSG_DONTWAIT)
        return not self._unsent

    def announce(self) -> None:
        """Send the number of the next call ahead, so that the other end is awake when its message comes.

        Never waits. That the other end is gone is told to the call.
        """
        if not self._ahead:
            data = _SIZES.pack(self._call + 1 & _CALLS, 0, 0)[:_AHEAD]
            with suppress(OSError):
                self._ahead = self._end.send(data, socket.MSG_DONTWAIT)

    def flush(self) -> None:
        """Send what is left of the last message, however long that takes; raise Closed if the other end is gone."""
        rest, self._unsent = self._unsent, memoryview(b"")
        if not rest:  # to send nothing fails, too, when the other end has answered and gone
            return
        try:
            self._end.sendall(rest)
        except OSError as error:
            raise Closed(str(error)) from error

    def _send(self, message: Message, first: bool, flags: int) -> None:
        head = write_head(message.head)
        self._call += first
        data = _SIZES.pack(self._call & _CALLS, len(head), len(message.body)) + head + message.body
        data, self._ahead = data[self._ahead :], 0
        try:
            if message.descriptors:
                sent = socket.send_fds(self._end, [data], message.descriptors, flags)
            else:
                sent = self._end.send(data, flags)
        except BlockingIOError:
            raise Broken("it answers requests that it has not read") from None
        except OSError as error:
            raise Closed(str(error)) from error
        self._unsent = memoryview(data)[sent:]

    def receive(self, *, first: bool = False) -> Message:
        """Wait for the next message; the `first` of a call, or one of the present call.

        Raises:
            NoDescriptorLeft: the message is lost, and the channel is of no more use.
            Closed: the other end is gone.
            Broken: it is not a message, too large, of another call, more than one, or with too many descriptors.
        """
        self._call += first
        while (message := self._whole()) is None:
            self._stay_awake()
            self._more(0)
        return message

    def _stay_awake(self) -> None:
        """Return when there is something to read, or it takes long enough to sleep."""
        late = time.perf_counter() + _AWAKE
        while not self._poll.poll(0) and time.perf_counter() < late:
            os.sched_yield()  # whoever is to answer may wait for this processor

    def look(self) -> Message | None:
        """Return the next message of the present call if all of it is there, and it is small; never wait.

        What has arrived of another one stays for `receive`, which raises the same.
        """
        self._more(socket.MSG_DONTWAIT)
        return self._whole()

    def shut(self) -> None:
        """Wake whoever waits at either end with Closed."""
        _shut(self._end)

    def close(self) -> None:
        """Close this end, and the descriptors of a message that is not complete."""
        self._end.close()
        self._forget()

    def abandon(self) -> None:
        """Close this end, without waiting for what has come with messages that nobody has read."""
        self.shut()
        discard([self._end.detach()])
        self._forget()

    def _whole(self) -> Message | None:
        data = self._data
        if len(data) < _SIZES.size:
            return None
        try:
            call, head, body = _SIZES.unpack_from(data)
            if call != self._call & _CALLS:
                raise Broken("it speaks of a call that has ended")
            if head + body > self._limits.size:
                raise Broken(f"it announces a message of {head + body} bytes; at most {self._limits.size} are accepted")
            total, start = _SIZES.size + head + body, _SIZES.size + head
            if len(data) > total:
                raise Broken(f"{len(data) - total} bytes follow its message, and nobody has asked for them")
            if len(data) < total:
                return None
            message = Message(
                _read(bytes(data[_SIZES.size : start]), self._limits),
                bytes(data[start:]),
                self._descriptors,
                self._limits,
            )
        except Broken:
            self._forget()
            raise
        self._incomplete.remove(len(data))
        self._data, self._descriptors = bytearray(), []
        return message

    def _more(self, flags: int) -> None:
        try:
            data, descriptors, told = receive(self._end, _CHUNK if self._data else _SMALL, ALL, flags)
        except BlockingIOError:
            if flags & socket.MSG_DONTWAIT:
                return
            self._forget()  # the other end shares the socket, and has made it so
            raise Broken("it made a channel of the daemon's non-blocking") from None
        except OSError as error:
            self._forget()
            raise Closed(str(error)) from error
        self._data += data
        self._descriptors += descriptors
        if not self._incomplete.add(len(data)):
            self._forget()
            raise Broken("it has begun more messages at once than are kept, and completed none")
        if len(self._descriptors) > _DESCRIPTORS:
            self._forget()
            raise Broken(_MANY)
        if told & socket.MSG_CTRUNC:
            self._forget()
            raise NoDescriptorLeft(_FULL)
        if not data:
            self._forget()
            raise Closed("the other end is gone")

    def _forget(self) -> None:
        discard(self._descriptors)
        self._incomplete.remove(len(self._data))
        self._data, self._descriptors = bytearray(), []


class Control:
    """One end of a control socket. Any thread may send; one receives."""

    def __init__(self, end: socket.socket) -> None:
        self._end = end

    @classmethod
    def adopt(cls, descriptor: int) -> Self:
        """Take over an inherited descriptor."""
        return cls(socket.socket(fileno=descriptor))

    def fileno(self) -> int:
        """Return the descriptor, to wait for messages."""
        return self._end.fileno()

    def send(self, head: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a datagram; raise Closed if the other end is gone, Broken if it is too long."""
        data = write_head(head)
        if len(data) > DATAGRAM:
            raise Broken(f"a datagram of {len(data)} bytes is too long")
        try:
            socket.send_fds(self._end, [data], descriptors)
        except OSError as error:
            raise Closed(str(error)) from error

    def receive(self) -> Message:
        """Wait for a datagram.

        Raises:
            NoDescriptorLeft: the datagram is lost, and the next one can be received.
            Closed: the other end is gone.
            Broken: it is no message.
        """
        try:
            try:
                data, descriptors, flags = receive(self._end, DATAGRAM, ALL)
            except ConnectionResetError:  # it went without reading everything; what it had sent is still there
                data, descriptors, flags = receive(self._end, DATAGRAM, ALL)
        except OSError as error:
            raise Closed(str(error)) from error
        if not data:
            raise Closed("the other end is gone")
        message = Message({}, b"", descriptors)
        try:
            if len(descriptors) > _DESCRIPTORS:
                raise Broken(_MANY)
            if flags & socket.MSG_CTRUNC:
                raise NoDescriptorLeft(_FULL)
            if flags & socket.MSG_TRUNC:
                raise Broken(f"its datagram has more than {DATAGRAM} bytes")
            message.head = _read(data)
        except BaseException:
            message.discard()
            raise
        return message

    def open(self, head: Mapping[str, Any], incomplete: Incomplete | None = None) -> Channel:
        """Open a channel to the other end; raise Closed if that is gone."""
        mine, theirs = socket.socketpair()
        try:
            self.send(head, [theirs.fileno()])
        except BaseException:
            mine.close()
            raise
        finally:
            theirs.close()
        return Channel(mine, incomplete=incomplete)

    def shut(self) -> None:
        """Tell the other end that nothing follows, and wake whoever waits at this one."""
        _shut(self._end)

    def close(self) -> None:
        """Close this end."""
        self._end.close()

    def abandon(self) -> None:
        """Close this end, without waiting for what has come with messages that nobody has read."""
        discard([self._end.detach()])


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:  # it is closed, or the other end is gone
        return


def _read(data: bytes, limits: Input = WORKER_MESSAGE) -> Mapping[str, Any]:
    try:
        return read_head(data, limits)
    except ValueError as error:
        raise Broken(str(error)) from None
