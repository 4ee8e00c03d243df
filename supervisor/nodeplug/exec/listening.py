"""The exec socket at its path.

Owns: listening there in place of what a killed daemon has left, and the socket's mode from its first instant.
Refuses: to take the path from a daemon that lives, or from a file that is no socket.
"""

import errno
import os
import socket
import stat
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import PluginError

BACKLOG: Final = 1024
"""Connections that the kernel queues until they are accepted (at most net.core.somaxconn)."""
Identity = tuple[int, int]
"""Device and inode of the socket in its folder."""


def listen(path: Path) -> tuple[socket.socket, Identity]:
    """Listen at a path; the folder is created if it is missing. May block.

    Raises:
        PluginError: another daemon listens there, or the path cannot be used.
    """
    try:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise PluginError(f"cannot make the folder {path.parent}: {error.strerror}") from error
    _clear_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        # Not a chmod after bind: others could connect in between. The path gets the socket's mode (unix_bind_bsd).
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(str(path))
        listener.listen(BACKLOG)
        status = path.stat()
    except OSError as error:
        listener.close()
        raise PluginError(f"cannot listen on {path}: {error.strerror or error}") from error
    return listener, (status.st_dev, status.st_ino)


def _clear_stale(path: Path) -> None:
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise PluginError(f"{path} exists and is not a socket; remove it, or configure another exec_socket")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
        code = probe.connect_ex(str(path))
    if code in {0, errno.EAGAIN}:
        raise PluginError(f"another daemon listens on {path}; stop it first, or configure another exec_socket")
    if code == errno.ECONNREFUSED:
        path.unlink()
    elif code != errno.ENOENT:
        raise PluginError(f"cannot tell whether a daemon listens on {path}: {os.strerror(code)}")
