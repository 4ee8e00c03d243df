"""Requests to the running daemon, over the socket that the entrypoint scripts use.

Owns: the client side of frames of style "control", whose reply is one JSON object, and of the one by which a daemon
asks for the place of another.
Refuses: to start anything. The other side is in `daemon`.
"""

import json
import socket
import time
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.exec.frame import SUCCESSION, Frame, Reply

TIMEOUT: Final = 10.0
_PATIENCE: Final = 30.0
"""Seconds in which a daemon that ends, or is replaced by another one just now, has ended."""
_PAUSE: Final = 0.2


def ask(path: Path, *argv: str, timeout: float = TIMEOUT) -> dict[str, Any]:
    """Send one control request, such as "status", and return the reply; the timeout, in seconds, is for each step.

    Raises:
        NotReady: no daemon listens there.
        PluginError: the caller is not root, the daemon refused, or the reply is not JSON.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(timeout)
        try:
            peer.connect(str(path))
        except PermissionError as error:
            raise PluginError(f"only root may ask the daemon at {path}; run this as root") from error
        except OSError as error:
            raise NotReady(
                f"the daemon does not listen at {path}: {error.strerror}; is `nodeplug serve` running?"
            ) from error
        try:
            reply = exchange(peer, Frame("control", "nodeplug", argv))
        except OSError as error:
            raise PluginError(f"the daemon at {path} did not answer: {error}") from error
    if reply.exit and not reply.stdout:
        raise PluginError(f"the daemon at {path} refused: {reply.stderr.decode(errors='replace').strip()}")
    try:
        answer = json.loads(reply.stdout)
    except ValueError as error:
        raise PluginError(f"the daemon at {path} did not answer JSON: {reply.stdout[:200]!r}") from error
    if reply.exit and isinstance(answer, dict) and isinstance(answer.get("error"), str):
        raise PluginError(answer["error"])
    if reply.exit or not isinstance(answer, dict):
        raise PluginError(f"the daemon at {path} refused {' '.join(argv)!r}: {answer}")
    return answer


def exchange(peer: socket.socket, frame: Frame) -> Reply:
    """Send a frame through a connection, and read the reply. Blocks, each step for the timeout of the connection.

    Raises:
        OSError: of the connection.
        Undecodable: the daemon closed it before there was a whole reply.
    """
    peer.sendall(frame.encode())
    return Reply.decode(b"".join(iter(lambda: peer.recv(1 << 20), b"")))


def ask_for_place(path: Path, patience: float = _PATIENCE) -> int | None:
    """Ask the daemon that serves for its place; return the descriptor of a socket to it, or None if there is none.

    Blocks, and asks again while that daemon ends or is busy.

    Raises:
        PluginError: it keeps its place, or does not answer; the message says why.
    """
    late = time.monotonic() + patience
    while True:
        try:
            return _ask_once(path)
        except PluginError:
            if time.monotonic() > late:
                raise
            time.sleep(_PAUSE)


def _ask_once(path: Path) -> int | None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as peer:
        peer.settimeout(TIMEOUT)
        try:
            peer.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        except OSError as error:
            raise PluginError(f"cannot ask the daemon at {path} for its place: {error.strerror}") from error
        try:
            socket.send_fds(peer, [Frame(SUCCESSION, "nodeplug").encode()], [theirs.fileno()])
            data = b"".join(iter(lambda: peer.recv(1 << 16), b""))
        except OSError as error:
            raise PluginError(f"the daemon at {path} did not answer: {error}") from error
        reply = Reply.decode(data)
        if reply.exit:
            said = (reply.stderr or reply.stdout).decode(errors="replace").strip()
            raise PluginError(f"the daemon at {path} keeps its place: {said}")
        return ours.detach()
