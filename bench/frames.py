"""One request on the exec socket, timed: what an entrypoint sends, without the entrypoint."""

import os
import socket
import time
from collections.abc import Sequence

from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ScratchNode


def ask(node: ScratchNode, frame: Frame, namespaces: Sequence[str] = ()) -> float:
    """Send one frame, and read the reply; return the seconds.

    Args:
        node: its daemon runs.
        frame: the request.
        namespaces: paths of the namespaces that go along.

    Raises:
        RuntimeError: the request failed.
    """
    data = frame.encode()
    descriptors = [os.open(path, os.O_RDONLY) for path in namespaces]
    try:
        started = time.perf_counter()
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(node.paths.exec_socket))
            socket.send_fds(peer, [data], descriptors)
            answer = b"".join(iter(lambda: peer.recv(1 << 20), b""))
        seconds = time.perf_counter() - started
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    reply = Reply.decode(answer)
    if reply.exit or b"Failure" in reply.stdout:
        raise RuntimeError(f"{frame.argv or frame.env} failed: {reply.stdout.decode(errors='replace')}")
    return seconds
