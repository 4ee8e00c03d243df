"""The processes that this one has started, and theirs: the kernel's connector for process events (linux/cn_proc.h)."""

import os
import socket
import struct
from contextlib import suppress

_NETLINK_CONNECTOR, _CN_IDX_PROC, _CN_VAL_PROC = 11, 1, 1
_NLMSG_DONE, _LISTEN, _SO_RCVBUFFORCE = 3, 1, 33
_HEADER = struct.Struct("=IHHIIIIIIHH")  # nlmsghdr and cn_msg
_EVENT = struct.Struct("=IIQ")  # what, cpu, time
_FORK = struct.Struct("=4i")  # of parent and child the thread's and the process's id
_WHAT_NONE, _WHAT_FORK = 0, 1
_BUFFER = 64 << 20
_ANSWER = 5.0


class Descendants:
    """The ids of this process and of all that it has started from now on, also of those that have ended.

    Needs the network namespace and the process namespace of the machine while it is made.

    Raises:
        OSError: the kernel has no such connector, or does not tell this process.
    """

    def __init__(self) -> None:
        self._ids = {os.getpid()}
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
        self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
        self._socket.bind((0, _CN_IDX_PROC))
        length = _HEADER.size + 4
        header = _HEADER.pack(length, _NLMSG_DONE, 0, 0, 0, _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0)
        self._socket.send(header + struct.pack("=I", _LISTEN))
        self._socket.settimeout(_ANSWER)  # it answers nothing where it does not tell
        while self._socket.recv(4096)[_HEADER.size :][:4] != struct.pack("=I", _WHAT_NONE):
            pass
        self._socket.setblocking(False)

    def ids(self) -> frozenset[int]:
        """Return them; an id that the kernel has given to somebody else since then is not among them."""
        with suppress(BlockingIOError):
            while True:
                with suppress(_Lost):
                    self._take(self._receive())
        return frozenset(self._ids)

    def _receive(self) -> bytes:
        try:
            return self._socket.recv(4096)
        except BlockingIOError:
            raise
        except OSError as error:  # more came than the buffer holds
            raise _Lost from error

    def _take(self, message: bytes) -> None:
        what, _, _ = _EVENT.unpack_from(message, _HEADER.size)
        if what != _WHAT_FORK:
            return
        _, parent, thread, child = _FORK.unpack_from(message, _HEADER.size + _EVENT.size)
        if thread != child:
            return
        if parent in self._ids:
            self._ids.add(child)
        else:
            self._ids.discard(child)


class _Lost(Exception):
    """Some events are lost."""
