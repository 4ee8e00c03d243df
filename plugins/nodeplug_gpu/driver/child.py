"""The driver process: `python -m nodeplug_gpu.driver.child SETTINGS`, SETTINGS being a JSON object.

Owns: three threads, and a fourth from the first limit on that is to be set. The main one sends heartbeats and reads
commands, one polls the cards, one waits for events. A call that never returns blocks its own thread alone: heartbeats
go on and name the call, and the daemon kills the process.
Refuses: to outlive its parent: it ends when its stdin does, whatever its other threads hang in, and when the thread
that started it ends (prctl(2), PR_SET_PDEATHSIG).

stdin takes lines: `poll` asks for a poll now, a JSON object is a `LimitOrder`, for the fourth thread. stdout carries
frames (`nodeplug_gpu.driver.wire`). Whatever the library itself prints goes to stderr.
"""

import ctypes
import json
import os
import queue
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from nodeplug_gpu.driver import library
from nodeplug_gpu.driver.bus import bound
from nodeplug_gpu.driver.calls import (
    DRIVER_NOT_LOADED,
    FUNCTION_NOT_FOUND,
    LIB_RM_VERSION_MISMATCH,
    NOT_SUPPORTED,
    Calls,
    NvmlFailure,
)
from nodeplug_gpu.driver.events import Listener
from nodeplug_gpu.driver.memory_limits import MemoryLimits
from nodeplug_gpu.driver.nvml import Reader
from nodeplug_gpu.driver.wire import ExitNotice, Frame, Heartbeat, LimitOrder, LogLine, PollResult, encode

_PR_SET_PDEATHSIG: Final = 1
_DATA_LIMIT: Final = 1 << 30
"""Limit of its memory, in bytes: a bogus count from the library must not exhaust the node's."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the daemon passes on the command line.

    Attributes:
        root: below which the driver is installed.
        sysfs: where sysfs is mounted.
        poll: seconds between two polls.
        heartbeat: seconds between two heartbeats; also the longest wait for an event.
        skip: indices of cards that are not queried, because a call about them hung.
        bound: PCI addresses of the cards for which the indices hold; the process ends when there are others.
        events: wait for events; off where that hangs.
        cgroups: where cgroup v2 should be mounted, if it matters which cards can have limits by cgroup; else empty.
    """

    root: str = "/"
    sysfs: str = "/sys"
    poll: float = 5.0
    heartbeat: float = 1.0
    skip: tuple[int, ...] = ()
    bound: tuple[str, ...] = ()
    events: bool = True
    cgroups: str = ""


class DriverProcess:
    """What the three threads share."""

    def __init__(self, settings: Settings, out: int) -> None:
        self._settings = settings
        self._out = out
        self._lock = threading.Lock()
        self._now = threading.Event()
        self._open = threading.Event()
        self._calls = Calls()
        self._event_calls = Calls()
        self._limit_calls = Calls()
        cgroups = Path(settings.cgroups) if settings.cgroups else None
        self._reader = Reader(self._calls, Path(settings.sysfs), self._warn, settings.skip, cgroups)
        self._orders: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._limiting = False
        self._listener = Listener(self._event_calls, self._reader, self._warn)

    def run(self) -> NoReturn:
        """Send heartbeats until stdin ends."""
        self._begin(self._poll_forever)
        if self._settings.events:
            self._begin(self._listen_forever)
        every, rest = (self._calls, self._event_calls, self._limit_calls), b""
        while True:
            self._send(Heartbeat(tuple(call for calls in every if (call := calls.pending))))
            if select.select([0], [], [], self._settings.heartbeat)[0]:
                commands = os.read(0, 65536)
                if not commands:
                    _end()
                *lines, rest = (rest + commands).split(b"\n")
                for line in lines:
                    if line == b"poll":
                        self._now.set()
                    else:
                        self._order(line)

    def _order(self, line: bytes) -> None:
        if not self._limiting:
            self._limiting = True
            self._begin(self._limit_forever)
        self._orders.put(line)

    def _begin(self, work: Callable[[], None]) -> None:
        threading.Thread(target=self._guarded, args=(work,), daemon=True).start()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:
            self._exit(f"the driver process has a defect: {type(error).__name__}: {error}")

    def _poll_forever(self) -> None:
        loaded = self._load()
        while (failed := self._initialise()) is not None:
            self._send(failed)
            self._wait()
            self._check_library(loaded)
        while True:
            self._check_library(loaded)
            if bound(Path(self._settings.sysfs)) != tuple(self._settings.bound):
                self._exit("cards were bound to the driver or taken from it", planned=True)
            try:
                self._send(self._reader.poll())
            except NvmlFailure as error:
                self._send(_failed(error))
                self._exit(str(error))
            self._open.set()
            self._wait()

    def _load(self) -> library.Library:
        while True:
            try:
                return library.load(Path(self._settings.root))
            except FileNotFoundError as error:
                self._send(PollResult("absent", str(error), taken=time.monotonic()))
            except OSError as error:
                self._send(PollResult("failed", str(error), taken=time.monotonic()))
            self._wait()

    def _initialise(self) -> PollResult | None:
        try:
            self._calls("nvmlInitWithFlags", 0)
        except NvmlFailure as error:
            if error.code == LIB_RM_VERSION_MISMATCH:
                self._send(_failed(error))
                self._exit(str(error))
            return _failed(error)
        return None

    def _check_library(self, loaded: library.Library) -> None:
        """Exit when the library on disk was replaced: a loaded library cannot be exchanged."""
        if replaced := loaded.replaced:
            self._exit(replaced, planned=True)

    def _listen_forever(self) -> None:
        self._open.wait()
        reported = set()
        while True:
            try:
                event = self._listener.wait(self._settings.heartbeat)
            except NvmlFailure as error:
                if error.code in {FUNCTION_NOT_FOUND, NOT_SUPPORTED}:
                    self._warn(f"no events: {error}; cards are polled")
                    return
                if error.code not in reported:
                    reported.add(error.code)
                    self._warn(f"waiting for events failed: {error}; it is retried")
                self._now.set()  # whatever broke the wait may concern the cards
                time.sleep(self._settings.heartbeat)
                continue
            if event is not None:
                self._send(event)
                self._now.set()

    def _limit_forever(self) -> None:
        self._open.wait()
        limits = MemoryLimits(self._limit_calls)
        while True:
            order = LimitOrder(**json.loads(self._orders.get()))
            self._send(limits.answer(order, self._reader.handles))

    def _wait(self) -> None:
        self._now.wait(self._settings.poll)
        self._now.clear()

    def _warn(self, message: str) -> None:
        self._send(LogLine("warning", message))

    def _exit(self, reason: str, *, planned: bool = False) -> NoReturn:
        self._send(ExitNotice(reason, planned))
        _end()

    def _send(self, frame: Frame) -> None:
        data = memoryview(encode(frame))
        with self._lock:
            while data:
                data = data[os.write(self._out, data) :]


def _failed(error: NvmlFailure) -> PollResult:
    return PollResult("absent" if error.code == DRIVER_NOT_LOADED else "failed", str(error), taken=time.monotonic())


def _end() -> NoReturn:
    """End at once, whatever other threads hang in; an orderly exit would wait for them."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Read the settings and serve."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (_DATA_LIMIT, _DATA_LIMIT))
    out = os.dup(1)
    os.dup2(2, 1)  # what the library prints is not a frame
    DriverProcess(Settings(**json.loads(sys.argv[1])), out).run()


if __name__ == "__main__":
    main()
