"""A socket whose close waits until the other end has read everything (SO_LINGER, socket(7))."""

import socket
import struct
from contextlib import suppress


def lingering() -> tuple[socket.socket, socket.socket]:
    """Return such a socket, and the other end, which has read nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far = listener.accept()[0]
    near.setblocking(False)
    with suppress(BlockingIOError):
        while True:
            near.send(bytes(1 << 16))
    near.setblocking(True)
    near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 600))
    return near, far
