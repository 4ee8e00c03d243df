"""What one caller of the exec socket has sent so far.

Owns: reading a frame and its descriptors without blocking, within the limits of `nodeplug.exec.frame`, and closing the
descriptors that are not handed over.
Refuses: time limits and replies (`nodeplug.exec.server`).
"""

import asyncio
import os
import socket
import struct
from contextlib import suppress
from typing import Final

from nodeplug.contract.errors import InvalidNetns, InvalidRequest, TryAgain, Undecodable
from nodeplug.contract.netns import Netns
from nodeplug.descriptors import receive
from nodeplug.exec.frame import HEADER, LIMIT, Frame, body_size

_CREDENTIALS: Final = struct.Struct("3i")
_DESCRIPTORS: Final = 2
_CHUNK: Final = 1 << 18
_AT_ONCE: Final = int(socket.MSG_DONTWAIT)
_TRUNCATED: Final = int(socket.MSG_CTRUNC)


class Arrival:
    """What one caller has sent so far. Descriptors that are not handed over get closed."""

    def __init__(self, peer: socket.socket) -> None:
        self.peer = peer
        self.refused = False
        self._data = bytearray()
        self._descriptors: list[int] = []

    @property
    def silent(self) -> bool:
        """Whether nothing has arrived."""
        return not self._data

    @property
    def is_whole(self) -> bool:
        """Whether the frame has arrived; reads what is there. An entrypoint sends all of it as it connects."""
        if not self._data:
            with suppress(BlockingIOError, InterruptedError, ConnectionError):
                self._read()
        return len(self._data) >= self._announced()

    async def frame(self) -> Frame | None:
        """Read one frame; None if the caller closed without sending anything.

        Raises:
            Undecodable: not a frame, too large, or truncated.
        """
        while len(self._data) < (total := self._announced()):
            if not await self._more():
                if not self._data:
                    return None
                raise Undecodable(f"the request ends after {len(self._data)} bytes; {total} were announced")
        return Frame.decode(bytes(self._data))

    def _announced(self) -> int:
        """Return how many bytes the frame has, as far as is known; Undecodable if it is none."""
        if len(self._data) < HEADER.size:
            return HEADER.size
        return HEADER.size + body_size(bytes(self._data[: HEADER.size]))

    async def style(self) -> str:
        """Read far enough to know the style; empty if the bytes are not a frame."""
        while b"\0" not in self._data[HEADER.size :] and len(self._data) < HEADER.size + 16 and await self._more():
            pass
        return bytes(self._data[HEADER.size :]).partition(b"\0")[0].decode("ascii", "replace")

    async def drain(self) -> None:
        """Discard what still arrives, up to a few times the limit."""
        seen = 0
        while seen < 4 * LIMIT and await self._more():
            seen += len(self._data)
            self._data.clear()

    def namespaces(self, frame: Frame) -> tuple[Netns, ...]:
        """Hand over the caller's namespace, and that of CNI_NETNS if it is one; InvalidNetns if the first is not."""
        found: list[Netns] = []
        for path in ("/proc/self/ns/net", frame.env.get("CNI_NETNS", ""))[: len(self._descriptors)]:
            # One at a time, and closed if refused; `close` closes the rest.
            fd = self._descriptors.pop(0)
            try:
                found.append(Netns.adopt(fd, path))
            except InvalidNetns:
                # A CNI_NETNS that is not a namespace is up to the verb: DEL must succeed without one.
                if not found:
                    raise
        return tuple(found)

    def credentials(self) -> tuple[int, int]:
        """Return the caller's process and user (unix(7), SO_PEERCRED)."""
        data = self.peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(data)
        return int(pid), int(uid)

    def descriptor(self) -> int:
        """Hand over the only descriptor of a request that is no call; InvalidRequest if it has not exactly one."""
        if len(self._descriptors) != 1:
            raise InvalidRequest(f"the request comes with one descriptor; found {len(self._descriptors)}")
        return self._descriptors.pop()

    def end(self, _: object = None) -> None:
        """Close everything, including the connection."""
        self.close()
        self.peer.close()

    def close(self) -> None:
        """Close what was not handed over."""
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []

    async def _more(self) -> bool:
        while True:
            try:
                return self._read()
            except (BlockingIOError, InterruptedError):
                await readable(self.peer)
            except ConnectionError:
                return False

    def _read(self) -> bool:
        """Read what is there; False at the end. Raises BlockingIOError if nothing is, and ConnectionError."""
        data, fds, flags = receive(self.peer, _CHUNK, _DESCRIPTORS, _AT_ONCE)  # what does not fit is dropped
        room = _DESCRIPTORS - len(self._descriptors)
        self._descriptors += fds[:room]
        for fd in fds[room:]:
            os.close(fd)
        self._data += data
        if flags & _TRUNCATED and len(fds) < _DESCRIPTORS:
            # Otherwise the call would run in the daemon's own namespace, or as if the container's were gone.
            raise TryAgain("the daemon has no file descriptor left for this call; raise its limit (LimitNOFILE)")
        return bool(data)


async def readable(peer: socket.socket) -> None:
    """Wait until there is something to read."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def resolve() -> None:
        if not future.done():
            future.set_result(None)

    number = peer.fileno()  # a selector that does not know a socket describes it in full before it is told
    loop.add_reader(number, resolve)
    try:
        await future
    finally:
        if peer.fileno() >= 0:
            loop.remove_reader(number)
