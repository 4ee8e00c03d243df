"""The exec socket at its path.

Owns: listening there in place of what a killed daemon has left, and the socket's mode from its first instant.
Refuses: to take the path from a daemon that lives, or from a file that is no socket.
"""

import errno
import os
import signal
import socket
import stat
import struct
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import PluginError
from nodeplug.exec.client import exchange
from nodeplug.exec.frame import ALIVE, Frame

BACKLOG: Final = 1024
"""Connections that the kernel queues until they are accepted (at most net.core.somaxconn)."""
_SILENCE: Final = 2.0
"""Timeout for an answer on the socket of a killed daemon, in seconds."""
_CREDENTIALS: Final = struct.Struct("3i")
_KILL: Final = 1 << (signal.SIGKILL - 1)
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
        listens = code == errno.EAGAIN or (code == 0 and not (_was_killed(_listener_of(probe)) and _is_silent(probe)))
    if listens:
        raise PluginError(f"another daemon listens on {path}; stop it first, or configure another exec_socket")
    if code in {0, errno.ECONNREFUSED}:
        path.unlink()
    elif code != errno.ENOENT:
        raise PluginError(f"cannot tell whether a daemon listens on {path}: {os.strerror(code)}")


def _listener_of(probe: socket.socket) -> int:
    """Return the process that listens (SO_PEERCRED of unix(7)); 0 for one in another PID namespace."""
    credentials = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid: int = _CREDENTIALS.unpack(credentials)[0]
    return pid


def _was_killed(pid: int) -> bool:
    """Whether a process has been killed and cannot exit yet, such as while a thread waits for a disk.

    It executes no code any more, but its socket exists until it exits.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    pending = int(fields.get("SigPnd", "0"), 16) | int(fields.get("ShdPnd", "0"), 16)
    return fields.get("State", "").strip()[:1] in {"Z", "X"} or bool(pending & _KILL)


def _is_silent(probe: socket.socket) -> bool:
    """Whether no daemon answers on a socket. Its first daemon may have handed it over to one that runs."""
    probe.settimeout(_SILENCE)
    try:
        exchange(probe, Frame(ALIVE, "nodeplug"))
    except (OSError, PluginError):
        return True
    return False
