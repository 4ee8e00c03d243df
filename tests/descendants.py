"""The processes that this one has started, and theirs: the kernel's connector for process events (linux/cn_proc.h)."""

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator

from tests.children import children_of

_NETLINK_CONNECTOR, _CN_IDX_PROC, _CN_VAL_PROC = 11, 1, 1
_NLMSG_DONE, _LISTEN, _SO_RCVBUFFORCE = 3, 1, 33
_HEADER = struct.Struct("=IHHIIIIIIHH")  # nlmsghdr and cn_msg
_EVENT = struct.Struct("=IIQ")  # what, cpu, time
_FORK = struct.Struct("=4i")  # of parent and child the thread's and the process's id
_EXEC = struct.Struct("=2i")
_WHAT_NONE, _WHAT_FORK, _WHAT_EXEC = 0, 1, 2
_BUFFER = 64 << 20
_ANSWER = 1.0


class Descendants:
    """The processes that this one has started, directly or not, since this object was made.

    Needs the network namespace and the process namespace of the machine while it is made.

    Raises:
        OSError: the kernel has no such connector, or does not tell this process.
    """

    def __init__(self) -> None:
        self._lineage = Lineage(os.getpid())
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_CONNECTOR)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, _BUFFER)
            self._socket.bind((0, _CN_IDX_PROC))
            self._listen()
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)

    def _listen(self) -> None:
        """Ask for events, and wait for the answer: in a container there is none, though others may have events sent."""
        length = _HEADER.size + 4
        header = _HEADER.pack(length, _NLMSG_DONE, 0, 0, 0, _CN_IDX_PROC, _CN_VAL_PROC, 0, 0, 4, 0)
        self._socket.send(header + struct.pack("=I", _LISTEN))
        self._socket.settimeout(_ANSWER)
        end = time.monotonic() + _ANSWER
        while self._socket.recv(4096)[_HEADER.size :][:4] != struct.pack("=I", _WHAT_NONE):
            if time.monotonic() > end:
                raise TimeoutError("the connector for process events does not answer")

    def executing(self) -> frozenset[int]:
        """Return the ids of descendants that have executed something since the last call.

        An id that somebody else had in that time as well is left out. If events were lost, everything is, and the
        descendants are read from /proc.
        """
        lost = False
        while True:
            try:
                self._take(self._socket.recv(4096))
            except BlockingIOError:
                if lost:
                    self._lineage.begin_anew(frozenset(tree(os.getpid())))
                return self._lineage.executing()
            except OSError:  # more came than the buffer holds
                lost = True

    def _take(self, message: bytes) -> None:
        what, _, _ = _EVENT.unpack_from(message, _HEADER.size)
        place = _HEADER.size + _EVENT.size
        if what == _WHAT_FORK:
            _, parent, thread, child = _FORK.unpack_from(message, place)
            if thread == child:
                self._lineage.forked(parent, child)
        elif what == _WHAT_EXEC:
            self._lineage.executed(_EXEC.unpack_from(message, place)[1])


class Lineage:
    """Which ids belong to a process and its descendants, as forks and executions come.

    Args:
        pid: of the process.
    """

    def __init__(self, pid: int) -> None:
        self._ours = {pid}
        self._executed_by_us: set[int] = set()
        self._executed_by_others: set[int] = set()

    def forked(self, parent: int, child: int) -> None:
        """Take in a new process, whose id another one may have had."""
        if parent in self._ours:
            self._ours.add(child)
        else:
            self._ours.discard(child)

    def executed(self, pid: int) -> None:
        """Take in that a process executes a program."""
        (self._executed_by_us if pid in self._ours else self._executed_by_others).add(pid)

    def begin_anew(self, ours: Collection[int]) -> None:
        """Forget what came before, because some events did not: an id that others have by now would stay ours.

        Args:
            ours: the ids of the process and its descendants.
        """
        self._ours = set(ours)
        self._executed_by_us, self._executed_by_others = set(), set()

    def executing(self) -> frozenset[int]:
        """Return the ids of descendants that have executed something since the last call, and nobody else's."""
        found = frozenset(self._executed_by_us - self._executed_by_others)
        self._executed_by_us, self._executed_by_others = set(), set()
        return found


def tree(pid: int) -> Iterator[int]:
    """Return the ids of a process and of all that descend from it, without those whose parent has ended."""
    yield pid
    for child in children_of(pid):
        yield from tree(child)
