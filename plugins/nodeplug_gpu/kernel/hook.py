"""A createRuntime hook: ask nodeplug to limit what a container has of a card, before its process starts.

Owns: what the runtime tells (the container's id and its cgroup), and what happens without an answer.
The text of this file stands in the CDI spec, and the node's python3 runs it: Python 3.7, nothing else.
Refuses: to set anything. The daemon does, and confirms it.

Source: OCI runtime specification, "Hooks" and "State": createRuntime runs in the namespaces of the runtime, when those
of the container exist and its program has not started.
"""

from __future__ import annotations

import json
import socket
import sys
import time

_LONGEST = 65536
_PATIENCE = 60
_REFUSE_AFTER = 5
_START_AFTER = 2


class Failed(Exception):
    """The container has no limit; the text says why."""


def cgroup_of(pid: int) -> str:
    """Return the path of a process in cgroup v2, as this process sees it."""
    with open("/proc/%d/cgroup" % pid, encoding="utf-8", errors="surrogateescape") as file:
        found = [line[3:].rstrip("\n") for line in file if line.startswith("0::")]
    if not found:
        raise Failed("the container is in no cgroup of cgroup v2")
    return found[0]


def connect(path: str, patience: float) -> socket.socket:
    """Connect to the daemon; one that is being replaced is away for a moment."""
    end = time.monotonic() + patience
    while True:
        asking = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        asking.settimeout(patience)  # without one, connect(2) blocks for as long as the queue of the socket is full
        try:
            asking.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            why = "nodeplug does not run on this node"
        except BlockingIOError:
            why = "nodeplug hangs: the queue of its socket is full"
        else:
            return asking
        asking.close()
        if time.monotonic() > end:
            raise Failed(why)
        time.sleep(0.1)


def ask(asking: socket.socket, request: dict[str, object]) -> str:
    """Return why there is no limit; empty when the daemon has confirmed it."""
    end = time.monotonic() + _PATIENCE
    asking.settimeout(_PATIENCE)
    asking.sendall(json.dumps(request).encode() + b"\n")  # shorter than the socket's buffer
    data = b""
    while not data.endswith(b"\n"):
        asking.settimeout(max(end - time.monotonic(), 0.001))
        more = asking.recv(_LONGEST)
        if not more:
            raise Failed("nodeplug ended before it answered")
        data += more
    return str(json.loads(data)["error"])


def main(arguments: list[str]) -> int:
    """Do as the arguments say: `--socket PATH --card UUID --bytes N --without start|refuse`."""
    options = dict(zip(arguments[::2], arguments[1::2]))
    refuse = options["--without"] == "refuse"
    try:
        state = json.loads(sys.stdin.read())
        request = {
            "container": state["id"],
            "cgroup": cgroup_of(int(state["pid"])),
            "card": options["--card"],
            "bytes": int(options["--bytes"]),
        }
        error = ask(connect(options["--socket"], _REFUSE_AFTER if refuse else _START_AFTER), request)
    except (Failed, OSError, ValueError, KeyError, TypeError) as found:
        error = str(found) or type(found).__name__
    if not error:
        return 0
    sys.stderr.write("nodeplug: the container's memory on %s cannot be limited: %s\n" % (options["--card"], error))
    return 1 if refuse else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
