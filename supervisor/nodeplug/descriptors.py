"""Descriptors that come over a socket (SCM_RIGHTS, unix(7)).

Owns: receiving them with their bytes, closed on exec from the first instant: a process that is started meanwhile must
not inherit what belongs to a call.
Refuses: to send them (`socket.send_fds`), and what they are.

Not `socket.recv_fds`: before Python 3.12 it leaves its flags out, and so MSG_CMSG_CLOEXEC and MSG_DONTWAIT.
"""

import array
import os
import socket
import sys
from typing import Final, NamedTuple

__all__ = ["ALL", "Received", "receive"]

ALL: Final = 253
"""As many as a message can bring (SCM_MAX_FD). With less room, the kernel closes the others in the receiving thread."""

_SIZE: Final = array.array("i").itemsize
_SCM_PIDFD: Final = 4
_CLOSED_ON_EXEC: Final = int(socket.MSG_CMSG_CLOEXEC)
"""A plain number: an operation on a flag of an enumeration takes as long as the system call."""


class Received(NamedTuple):
    """What one call has brought.

    Attributes:
        data: empty at the end of a stream.
        descriptors: the receiver's to close.
        flags: MSG_CTRUNC if more descriptors came than were accepted or could be opened, MSG_TRUNC for the bytes.
    """

    data: bytes
    descriptors: list[int]
    flags: int


def receive(end: socket.socket, size: int, most: int, flags: int = 0) -> Received:
    """Receive at most `size` bytes and about as many descriptors as `most`; `flags` are those of recvmsg(2)."""
    data, ancillary, told, _ = end.recvmsg(size, socket.CMSG_LEN(most * _SIZE), flags | _CLOSED_ON_EXEC)
    if not ancillary:
        return Received(data, [], told)
    descriptors = array.array("i")
    for level, kind, content in ancillary:
        if level != socket.SOL_SOCKET:
            continue
        if kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % _SIZE])
        elif kind == _SCM_PIDFD:  # of a stranger's socket that has SO_PASSPIDFD (unix(7)): one comes with each message
            os.close(int.from_bytes(content[:_SIZE], sys.byteorder))
    return Received(data, list(descriptors), told)
