"""Unix sockets on which gRPC serves, and which only their owner can use.

Owns: the limit of their paths, and binding without a moment of open permissions.
Refuses: names, and serving: each front has rules of its own.
"""

import os
from pathlib import Path
from typing import Final

import grpc.aio

from nodeplug.contract.errors import InvalidRequest
from nodeplug.process.umask import with_umask

PATH_LIMIT: Final = 107
"""Bytes of a unix socket's path (unix(7): sun_path holds 108 with the final NUL)."""
_UMASK: Final = 0o177


def check_socket_path(path: Path) -> None:
    """Raise InvalidRequest for a path of more than PATH_LIMIT bytes."""
    size = len(os.fsencode(path))
    if size > PATH_LIMIT:
        raise InvalidRequest(
            f"the socket path {path} has {size} bytes, the kernel takes {PATH_LIMIT}; shorten the folder"
        )


def bind_private(server: grpc.aio.Server, path: Path) -> None:
    """Bind so that the socket is only its owner's; raise RuntimeError or OSError if that fails."""
    with_umask(_UMASK, lambda: server.add_insecure_port(f"unix:{path}"), f"bind {path.name}")
