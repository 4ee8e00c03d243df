"""The socket at which the hook of a container asks for its limit.

Owns: the socket, who may ask (root), the bounds of a request, and one thread for each that is inside.
Refuses: to judge a request (`limits` does).
"""

import json
import os
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug_gpu.cards import Uuid

NAME: Final = "limits.sock"
_LONGEST: Final = 65536
_PATIENCE: Final = 5.0
"""Seconds that a hook has to send its request, which it has ready when it connects."""
_CREDENTIALS: Final = struct.Struct("3i")
_BACKLOG: Final = 128


@dataclass(frozen=True, slots=True)
class Request:
    """What a hook says.

    Attributes:
        container: the id of the container in its runtime.
        cgroup: its path in cgroup v2, from the root of the hierarchy.
        card: of which it has memory.
        size: how much, in bytes, as the name of its CDI device says.
    """

    container: str
    cgroup: str
    card: Uuid
    size: int


def decode(line: bytes) -> Request:
    """Read a request.

    Raises:
        ValueError: it is none.
    """
    found = json.loads(line)
    if not isinstance(found, dict) or found.keys() != {"container", "cgroup", "card", "bytes"}:
        raise ValueError("a request has container, cgroup, card and bytes")
    texts = [found[name] for name in ("container", "cgroup", "card")]
    if not all(isinstance(one, str) and one and "\0" not in one for one in texts) or type(found["bytes"]) is not int:
        raise ValueError("container, cgroup and card are texts, bytes is a number")
    return Request(texts[0], texts[1], Uuid(texts[2]), found["bytes"])


@dataclass(slots=True)
class Door:
    """Serves hooks until it is closed.

    Attributes:
        path: of the socket; one that a predecessor left there is replaced.
        answer: returns why there is no limit; empty when it is set. Called in a thread of its own.
    """

    path: Path
    answer: Callable[[Request], str]
    _socket: socket.socket | None = None
    _thread: threading.Thread | None = None
    _inode: int = 0

    @property
    def serves(self) -> bool:
        """Whether a hook reaches it."""
        try:
            return self._socket is not None and self.path.stat().st_ino == self._inode
        except OSError:
            return False

    def open(self) -> None:
        """Listen, instead of where it has listened.

        Raises:
            OSError: the socket cannot be made.
        """
        self.close()
        self.path.unlink(missing_ok=True)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(str(self.path))
            self.path.chmod(0o600)
            self._inode = self.path.stat().st_ino
            listening.listen(_BACKLOG)
        except BaseException:
            listening.close()
            raise
        self._socket = listening
        self._thread = threading.Thread(target=self._serve, args=(listening,), name="gpu:limits", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop to listen; the path stays, for a successor may have its own socket there by now."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)  # ends accept(2) in the thread
        if self._thread is not None:
            self._thread.join(2)
        if self._socket is not None:
            self._socket.close()
        self._socket = self._thread = None

    def _serve(self, listening: socket.socket) -> None:
        while True:
            try:
                asking = listening.accept()[0]
            except OSError:
                return
            threading.Thread(target=self._attend, args=(asking,), name="gpu:limit", daemon=True).start()

    def _attend(self, asking: socket.socket) -> None:
        with asking, suppress(OSError):
            asking.settimeout(_PATIENCE)
            uid = _CREDENTIALS.unpack(asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))[1]
            error = self._answered(asking) if uid in {0, os.geteuid()} else f"user {uid} may not ask, root may"
            asking.sendall(json.dumps({"error": error}).encode() + b"\n")

    def _answered(self, asking: socket.socket) -> str:
        data = b""
        while not data.endswith(b"\n"):
            more = asking.recv(_LONGEST)
            data += more
            if not more or len(data) > _LONGEST:
                return "the request has no end"
        try:
            request = decode(data)
        except (ValueError, RecursionError) as error:
            return f"the request cannot be read: {error}"
        return self.answer(request)
