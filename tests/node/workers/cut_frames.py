"""How a plugin's process ends in the middle of a frame, closes what it speaks on and lives on, or lies in an answer."""

import json
import os
import signal
import socket
import struct
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import nodeplug as n

_HEAD = json.dumps({"op": "answer"}).encode()
_BODY = b"[" + b" " * 1000 + b"]"


def _answering(speak: Callable[[socket.socket, bytes], None]) -> Callable[[n.Host], None]:
    """Have the answer of the call written by other code, which gets its socket and the number of the call."""

    def way(_: n.Host) -> None:
        from nodeplug.worker import wire  # noqa: PLC0415 - hostile code imports what it likes

        def send(self: Any, message: object) -> None:
            speak(self._end, struct.pack("<I", self._call))

        wire.Channel.send = send  # type: ignore[assignment, method-assign]

    return way


def _cut(*, at: int, files: int = 0) -> Callable[[n.Host], None]:
    """Send so many bytes of an answer, with descriptors, and be killed."""

    def speak(end: socket.socket, call: bytes) -> None:
        data = (call + struct.pack("<II", len(_HEAD), len(_BODY)) + _HEAD + _BODY)[:at]
        with Path("/dev/null").open() as file:
            socket.send_fds(end, [data], [file.fileno()] * files)
        os.kill(os.getpid(), signal.SIGKILL)

    return _answering(speak)


def _lie(end: socket.socket, call: bytes) -> None:
    body = b'[{"id": 5}]'
    end.sendall(call + struct.pack("<II", len(_HEAD), len(body)) + _HEAD + body)


def _live_on() -> None:
    """Have nothing of this process end it."""
    os._exit = lambda _: time.sleep(3600)  # type: ignore[assignment, return-value]


def _close_control(_: n.Host) -> None:
    _live_on()
    with socket.socket(fileno=os.dup(3)) as control:
        control.shutdown(socket.SHUT_RDWR)


def _close_call(host: n.Host) -> None:
    """Close the channel of the call in which this is."""
    _live_on()
    door: Any = getattr(host.journal, "door")  # noqa: B009 - only the host of a process has one
    door.here.channel.shut()
    time.sleep(3600)


def _leave_a_session(host: n.Host) -> None:
    """Leave a child in a session of its own that holds every descriptor, and end."""
    reading, writing = os.pipe()
    if child := os.fork():
        os.close(writing)
        os.read(reading, 1)  # it is in that session: what is left in this one is killed at this one's end
        note = host.state_dir / "child"
        note.with_suffix(".new").write_text(str(child))
        note.with_suffix(".new").rename(note)
        os._exit(7)
    os.setsid()
    os.write(writing, b"\0")
    with suppress(KeyboardInterrupt):
        time.sleep(3600)
    os._exit(0)


CUT: Mapping[str, Callable[[n.Host], None]] = {
    "ends in the sizes": _cut(at=6),
    "ends in the head": _cut(at=12 + 5),
    "ends in the body": _cut(at=12 + len(_HEAD) + 500),
    "ends after descriptors": _cut(at=12 + 5, files=3),
}
WAYS: Mapping[str, Callable[[n.Host], None]] = {
    **CUT,
    "closes its socket": _close_control,
    "closes its call": _close_call,
    "lies": _answering(_lie),
    "leaves a session": _leave_a_session,
}
