"""Requests to the running daemon, over the socket that the entrypoint scripts use.

Owns: the client side of frames of style "control", whose reply is one JSON object.
Refuses: to start anything. The other side is in `daemon`.
"""

import json
import socket
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import NotReady, PluginError
from nodeplug.exec.frame import Frame, Reply

TIMEOUT: Final = 10.0


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
            peer.sendall(Frame("control", "nodeplug", argv).encode())
            data = b"".join(iter(lambda: peer.recv(1 << 20), b""))
        except OSError as error:
            raise PluginError(f"the daemon at {path} did not answer: {error}") from error
    reply = Reply.decode(data)
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
