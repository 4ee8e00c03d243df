"""The sockets on which resources are served: their names, their limits, their permissions, their remains.

Owns: names that never repeat, binding without a moment of open permissions, the removal of what a killed daemon left.
Refuses: serving.
"""

import hashlib
import logging
import os
import socket
import time
from pathlib import Path
from typing import Final

import grpc.aio

from nodeplug.contract.errors import InvalidRequest
from nodeplug.process.umask import with_umask

LOG: Final = logging.getLogger(__name__)
PATH_LIMIT: Final = 107
"""Bytes of a unix socket's path (unix(7): sun_path holds 108 with the final NUL)."""
_SOCKET_UMASK: Final = 0o177


def check_socket_path(path: Path) -> None:
    """Raise InvalidRequest for a path of more than PATH_LIMIT bytes."""
    size = len(os.fsencode(path))
    if size > PATH_LIMIT:
        raise InvalidRequest(
            f"the socket path {path} has {size} bytes, the kernel takes {PATH_LIMIT}; shorten the folder"
        )


def bind_private(server: grpc.aio.Server, path: Path) -> None:
    """Bind so that the socket is only its owner's; raise RuntimeError or OSError if that fails."""
    with_umask(_SOCKET_UMASK, lambda: server.add_insecure_port(f"unix:{path}"), f"bind {path.name}")


_last_number = 0


def socket_path(folder: Path, resource: str) -> Path:
    """Return a socket path that this resource never had since boot.

    `nodeplug-<8 hex of the resource>-<milliseconds since boot, or one more than the last>.sock`: kubelet must not take
    a new server for an old one (kubernetes#121994), also across restarts of the daemon.
    """
    global _last_number  # noqa: PLW0603 - one counter for the process: two registrations within a millisecond
    _last_number = max(_last_number + 1, time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000)
    return folder / f"{_stem(resource)}{_last_number}.sock"


def _stem(resource: str) -> str:
    return f"nodeplug-{hashlib.sha256(resource.encode()).hexdigest()[:8]}-"


def remove_dead_sockets(folder: Path, resource: str | None = None) -> None:
    """Remove the sockets that a killed daemon left; one that somebody listens on stays.

    Args:
        folder: where they lie.
        resource: whose they are. None: those of every resource; the killed daemon may have offered others, and nobody
            else would remove them.
    """
    for path in sorted(folder.glob(f"{'nodeplug-' if resource is None else _stem(resource)}*.sock")):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                LOG.info("removed the dead socket %s", path)
            except OSError as error:
                LOG.debug("left %s alone: %s", path, error.strerror)
