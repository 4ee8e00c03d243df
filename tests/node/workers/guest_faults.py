"""How a plugin in a process of its own goes wrong: its process ends, hangs, takes too much, or sends no message."""

import contextlib
import ctypes
import json
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cut_frames  # type: ignore[import-not-found]  # beside this file
import lingering  # type: ignore[import-not-found]  # as above

import nodeplug as n

CHILDREN: "list[subprocess.Popen[bytes]]" = []
KEPT: list[object] = []


def _raise(error: Exception) -> Callable[[n.Host], None]:
    def way(_: n.Host) -> None:
        raise error

    return way


def _fork(_: n.Host) -> None:
    """Leave a child that holds every descriptor, and end."""
    if os.fork() == 0:
        time.sleep(3600)
    os._exit(7)


def _control() -> socket.socket:
    return socket.socket(fileno=os.dup(3))


def _mangled(data: bytes, call: int = 0) -> Callable[[n.Host], None]:
    """Write bytes to the socket of the call instead of an answer, after the number of the call."""

    def way(_: n.Host) -> None:
        from nodeplug.worker import wire  # noqa: PLC0415 - hostile code imports what it likes

        def send(self: Any, message: object) -> None:
            self._end.sendall(struct.pack("<I", self._call + call) + data)
            time.sleep(3600)

        wire.Channel.send = send  # type: ignore[assignment, method-assign]

    return way


def _burn(_: n.Host) -> None:
    sys.setswitchinterval(1000)
    while True:
        pass


def _twice(_: n.Host) -> None:
    """Answer, and answer again."""
    from nodeplug.worker import wire  # noqa: PLC0415 - hostile code imports what it likes

    def send(self: Any, message: wire.Message) -> None:
        head = json.dumps(message.head).encode()
        self._end.sendall(2 * (struct.pack("<III", self._call, len(head), len(message.body)) + head + message.body))

    wire.Channel.send = send  # type: ignore[assignment, method-assign]


def _attach_descriptors(_: n.Host) -> None:
    """Send descriptors with messages that need none."""
    from nodeplug.worker import wire  # noqa: PLC0415 - hostile code imports what it likes

    with _control() as control, Path("/dev/null").open() as file:
        for op in ("log", "refresh", "hello"):
            head = {"op": op, "logger": "x", "level": 20, "resource": "example.com/thing", "wire": wire.VERSION}
            text = dict.fromkeys(("text", "trace", "request", "thread"), "")
            socket.send_fds(control, [json.dumps(head | text).encode()], [file.fileno()] * 60)


def _linger(_: n.Host) -> None:
    """Answer with a socket that takes long to close."""
    from nodeplug.worker import wire  # noqa: PLC0415 - hostile code imports what it likes

    near, far = lingering.lingering()
    KEPT.append(far)

    def send(self: Any, message: wire.Message) -> None:
        head = json.dumps(message.head).encode()
        data = struct.pack("<III", self._call, len(head), len(message.body)) + head + message.body
        socket.send_fds(self._end, [data], [near.fileno()])
        near.close()

    wire.Channel.send = send  # type: ignore[assignment, method-assign]


def _hoard(_: n.Host) -> None:
    """Send an answer byte by byte, each with descriptors."""
    from nodeplug.worker import wire  # noqa: PLC0415 - hostile code imports what it likes

    def send(self: Any, message: object) -> None:
        with Path("/dev/null").open() as file:
            for byte in struct.pack("<III", self._call, 1 << 20, 1 << 20):
                socket.send_fds(self._end, [bytes([byte])], [file.fileno()] * 60)
                time.sleep(0.01)
        time.sleep(3600)

    wire.Channel.send = send  # type: ignore[assignment, method-assign]


def _write(host: n.Host) -> None:
    for folder in (host.state_dir, host.run_dir):
        (folder / "written").touch()


def _reserve(_: n.Host) -> None:
    """Map a gibibyte of address space, as libraries of vendors do, and touch nothing of it."""
    KEPT.append(mmap.mmap(-1, 1 << 30))


def _leak(_: n.Host) -> None:
    for _number in range(256):
        KEPT.append(b"x" * (1 << 20))
        time.sleep(0.01)


LEAK = "import time; kept = bytearray(b'x') * (160 << 20); time.sleep(3600)"


def _start(*command: str, session: bool = False, group: int | None = None) -> Callable[[n.Host], None]:
    """Start a child."""

    def way(_: n.Host) -> None:
        # What outlives the daemon has an output of its own.
        output = subprocess.DEVNULL if session else None
        CHILDREN.append(
            subprocess.Popen(command, stdout=output, stderr=output, start_new_session=session, process_group=group)
        )

    return way


def _start_threads(_: n.Host) -> None:
    """Start many, and end them before telling how many there were."""
    end = threading.Event()
    for count in range(200):
        try:
            threading.Thread(target=end.wait, daemon=True).start()
        except RuntimeError as error:
            end.set()
            raise n.Exhausted(f"{error} after {count}") from error


def _stop(_: n.Host) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(3600)  # the signal may reach another thread first


def _keep_descriptors(_: n.Host) -> None:
    """Open what can be opened, for ever, and close none."""
    while True:
        try:
            os.open("/dev/null", os.O_RDONLY)
        except OSError:
            time.sleep(0.001)


def _claim_a_path(_: n.Host) -> None:
    """Claim what the examination in this process would refuse."""
    from nodeplug.worker import inside  # noqa: PLC0415 - hostile code imports what it likes

    inside.write_claims = lambda _: [["cni", {"name": "../../../etc/cron.hourly/x"}]]  # type: ignore[assignment, attr-defined]


def _ask_again_and_again(host: n.Host) -> None:
    """Ask the daemon in a thread of the plugin's own; log each refusal, and the first answer after one."""

    def ask() -> None:
        refused = False
        while True:
            time.sleep(0.01)
            try:
                host.journal.read("a")
            except n.PluginError as error:
                host.log.warning("it was refused: %s", error)
                refused = True
            else:
                if refused:
                    host.log.warning("it was answered again")
                    return

    threading.Thread(target=ask, daemon=True).start()


def _flood(_: n.Host) -> None:
    for _turn in range(500):
        os.write(2, b"flood\n" * 10)


def _say_farewell(_: n.Host) -> None:
    sys.stdout.write("farewell")


def _forge(_: n.Host) -> None:
    """Write what looks like a line of the daemon, and spoil the file for whoever else has it."""
    os.write(1, b"2026-01-02T03:04:05.678Z ERROR nodeplug.daemon the node is lost\n")
    for number in (1, 2):
        with contextlib.suppress(OSError):
            os.ftruncate(number, 0)
        with contextlib.suppress(OSError):
            socket.socket(fileno=os.dup(number)).shutdown(socket.SHUT_RDWR)
        os.set_blocking(number, False)


def _ring(_: n.Host) -> None:
    """Have the kernel send SIGALRM, which nobody handles."""
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    time.sleep(3600)


def _segfault(_: n.Host) -> None:
    ctypes.string_at(0)


WAYS: dict[str, Callable[[n.Host], None]] = {
    "killed": lambda _: os.kill(os.getpid(), signal.SIGKILL),
    "exits": lambda _: os._exit(7),
    "segfault": _segfault,
    "stopped": _stop,
    "hangs": lambda _: time.sleep(3600),
    "burns": _burn,
    "raises": _raise(ValueError("a stray")),
    "refuses": _raise(n.Exhausted("nothing is left", details="0 of 3")),
    "forks": _fork,
    "hangs up": lambda _: _control().shutdown(socket.SHUT_RDWR),
    "junk": _mangled(struct.pack("<II", 5, 0) + b"hello"),
    "huge": _mangled(struct.pack("<II", 0xFFFFFFFF, 0xFFFFFFFF)),
    "stale": _mangled(struct.pack("<II", 2, 0) + b"{}", call=-1),
    "half": _mangled(b"\xff"),
    "twice": _twice,
    "speaks": lambda _: _control().sendall(b'{"op": "surprise"}'),
    "babbles": lambda _: _control().sendall(b"\x00" * 200),
    "attaches descriptors": _attach_descriptors,
    "hoards": _hoard,
    "lingers": _linger,
    "replaces json": lambda _: setattr(json, "dumps", None),
    "changes folder": lambda _: os.chdir("/proc"),
    "writes": _write,
    "logs": lambda host: host.log.warning("it is called"),
    "reserves": _reserve,
    "leaks": _leak,
    "starts threads": _start_threads,
    "starts a child": _start("sleep", "3600"),
    "starts a child in a group": _start("sleep", "3600", group=0),
    "starts a child that leaks": _start(sys.executable, "-IS", "-c", LEAK),
    "starts a child that is kept": _start("sleep", "3600", session=True),
    "starts a child that is kept and grows": _start(
        sys.executable, "-IS", "-c", f"import time; time.sleep(3); {LEAK}", session=True
    ),
    "closes descriptors": lambda _: os.closerange(0, 256),
    "keeps descriptors": _keep_descriptors,
    "asks again and again": _ask_again_and_again,
    "floods": _flood,
    "prints": _say_farewell,
    "forges": _forge,
    "rings": _ring,
    "claims a path": _claim_a_path,
    "is not allowed": lambda _: os.kill(1, 0),
    **cut_frames.WAYS,
}
