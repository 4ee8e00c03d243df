"""NVML in a process of its own, watched and replaced.

Owns: one thread that starts the driver process, reads it, watches it, ends it and starts the next one.
Refuses: to wait for the hardware, and to load a library of the driver into the daemon: what hangs or crashes in the
driver, or is replaced on disk, costs a process and never the daemon.

States:
    absent   the library or the kernel module is not there; looked for at each poll
    failed   it is there and does not work; the process is replaced, fast at first, then once per poll
A process that exits to load a new library, or because cards were added, is replaced at once, and the snapshot stays.
The same holds when a call about one card hangs: that card alone gets an error, and the next process skips it for a
while; and when only waiting for events hangs: the next process polls the cards without.
"""

import contextlib
import os
import selectors
import socket
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from nodeplug_gpu.cards import GpuEvent, Snapshot, Telemetry
from nodeplug_gpu.driver import Observer
from nodeplug_gpu.driver.bus import bound
from nodeplug_gpu.driver.hangs import TIMEOUT, Hangs
from nodeplug_gpu.driver.publish import Log, Publisher
from nodeplug_gpu.driver.running import RunningProcess
from nodeplug_gpu.driver.wire import Frame, Look

_FIRST_PAUSE: Final = 0.05
"""Seconds before a process that failed is replaced; doubled each time, up to one poll."""
_MOST_LEFT_BEHIND: Final = 3
"""Processes that SIGKILL did not end. With so many there is no point in one more."""
_MOST_ROUNDS: Final = 5
"""Doublings of the time for which a card that hangs is left alone."""
_PROVEN: Final = 10
"""Times `hang_after` after which a process that waited for events did so well for a while."""
_REAP: Final = 0.3
"""Seconds that a killed process has to end before it is left behind."""


class NvmlDriver:
    """The cards that NVIDIA's driver shows."""

    def __init__(
        self,
        root: Path,
        poll: float,
        hang_after: float,
        log: Log,
        *,
        sysfs: Path = Path("/sys"),
        ask_again: float = 120.0,
    ) -> None:
        """Make a driver that does nothing yet.

        Args:
            root: below which the driver is installed; `/`, or such as `/run/nvidia/driver`.
            poll: seconds between two looks.
            hang_after: seconds after which a call that has not returned is taken for hanging. Attaching to a card may
                take four times as long.
            log: for what goes wrong.
            sysfs: where sysfs is mounted.
            ask_again: seconds after which a card whose call hung is asked again; twice as long after each time that
                it hangs again, because no card is looked at while it does.
        """
        self._poll = poll
        self._hang_after = hang_after
        self._log = log
        beat = max(0.02, min(1.0, hang_after / 4))
        self._settings = {"root": str(root), "sysfs": str(sysfs), "poll": poll, "beat": beat}
        self._publisher = Publisher(log)
        self._ask_again = ask_again
        self._rounds = 0
        self._hangs = Hangs()
        self._deaf = ""
        self._deaf_rounds = 0
        self._sysfs = sysfs
        self._bound: tuple[str, ...] = ()
        self._first_look = float("inf")
        self._left_behind: list[RunningProcess] = []
        self._failures = 0
        self._generation = 0
        self._pid = 0
        self._stopping = threading.Event()
        self._asked = threading.Event()
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The latest look."""
        return self._publisher.snapshot

    @property
    def pid(self) -> int:
        """The driver process that runs now; 0 without one."""
        return self._pid

    @property
    def left_behind(self) -> int:
        """How many processes hang in the kernel so that not even SIGKILL ends them."""
        return sum(not process.ended for process in self._left_behind)

    @property
    def _left_alone(self) -> float:
        return self._ask_again * (1 << min(max(self._rounds, self._deaf_rounds), _MOST_ROUNDS))

    def start(self, observer: Observer) -> None:
        """Begin to look, in a thread of its own."""
        if self._thread is None and not self._stopping.is_set():
            self._publisher.observer = observer
            wake, self._waker = socket.socketpair()
            wake.setblocking(False)
            self._waker.setblocking(False)
            self._thread = threading.Thread(target=self._run, args=(wake,), name="nodeplug-gpu-driver", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the process and the thread."""
        self._stopping.set()
        self._signal()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(2 * _REAP)
        if self._waker is not None:
            self._waker.close()

    def poll(self) -> None:
        """Ask for a look now."""
        self._asked.set()
        self._signal()

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # a full buffer wakes as well, and a closed one has nobody to wake
            if self._waker is not None:
                self._waker.send(b".")

    def _run(self, wake: socket.socket) -> None:
        with wake, selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self._serve(selector)

    def _serve(self, selector: selectors.BaseSelector) -> None:
        """Live through one driver process, from before its start to after its end."""
        if self.left_behind >= _MOST_LEFT_BEHIND:
            self._fail(f"{self.left_behind} driver processes hang in the kernel; the node needs a reboot")
            self._pause(selector, self._poll)
            return
        self._left_behind = [process for process in self._left_behind if not process.ended]
        if not self._hangs.cards:  # which are known by their index on this very bus
            self._bound = bound(self._sysfs)
        settings = self._settings | {"avoid": self._hangs.cards, "bound": self._bound, "events": not self._deaf}
        try:
            process = RunningProcess(settings, self._hang_after, self._log)
        except OSError as error:
            self._fail(f"the driver process cannot be started: {error}")
            self._pause(selector, self._poll)
            return
        self._generation += 1
        self._pid = process.pid
        began = time.monotonic()
        self._attend(selector, process)
        self._pid = 0
        if not process.kill(_REAP):
            self._left_behind.append(process)
        self._after(selector, process, time.monotonic() - began)

    def _attend(self, selector: selectors.BaseSelector, process: RunningProcess) -> None:
        """Read a process until it is of no use any more."""
        process.attach(selector)
        wait = 0.0
        self._first_look = float("inf")
        while not process.died and not self._stopping.is_set():
            ready = selector.select(wait)
            for key, _ in ready:
                if key.data is None:
                    _drain(key)
                else:
                    for frame in process.read(key):
                        self._take(frame)
            if self._asked.is_set():
                self._asked.clear()
                process.poll()
            spares = self._hangs.cards or self._deaf
            if spares and time.monotonic() > self._first_look + self._left_alone and not self.left_behind:
                # A process that still hangs in the kernel would say that the card has not come back.
                process.retire("what hung is asked again")
                self._rounds += bool(self._hangs.cards)
            # Silence is judged only when everything was read: the observer may have taken its time.
            wait = 0.0 if ready else process.look_after()
        process.detach(selector)

    def _take(self, frame: Frame) -> None:
        snapshot = self.snapshot
        if isinstance(frame, GpuEvent):
            self._publisher.publish(snapshot, (frame,))
        elif isinstance(frame, Look) and frame.state == "running":
            self._first_look = min(self._first_look, time.monotonic())
            if not frame.cards and self._hangs.cards:
                self._fail(self._hangs.reason)
                return
            frame = self._hangs.shown(frame)
            if not self._hangs.cards:
                self._rounds = 0
            if snapshot.state != "running":
                self._log.info("the driver %s shows %d cards", frame.driver_version, len(frame.cards))
            self._publisher.publish(
                Snapshot(
                    "running",
                    self._deaf,
                    driver_version=frame.driver_version,
                    cards=frame.cards,
                    telemetry=frame.telemetry,
                    processes=frame.processes,
                    taken=frame.taken,
                    generation=self._generation,
                    unreadable=frame.unreadable,
                )
            )
        elif isinstance(frame, Look):
            self._fail(frame.reason, absent=frame.state == "absent")

    def _fail(self, reason: str, *, absent: bool = False) -> None:
        """Publish that there is nothing to see, with the cards that were seen last."""
        snapshot = self.snapshot
        if snapshot.reason != reason:
            self._log.warning("%s", reason)
        self._publisher.publish(
            Snapshot(
                "absent" if absent else "failed",
                reason,
                cards=snapshot.cards,
                taken=time.monotonic(),
                generation=self._generation,
            )
        )

    def _after(self, selector: selectors.BaseSelector, process: RunningProcess, lived: float) -> None:
        if self._stopping.is_set():
            return
        if process.planned:
            self._log.info("%s; a new driver process is started", process.died)
            self._hangs.clear()
            self._deaf = ""
        elif process.deaf:
            self._do_without_events(process.died, lived)
            return
        elif process.hung is not None and process.hung not in self._hangs.cards:
            self._leave_alone(process.hung, process.died)
            return
        elif (self.snapshot.reason, self.snapshot.generation) != (process.died, self._generation):
            self._fail(process.died)
        self._failures = 0 if lived > max(self._poll, 4 * self._hang_after) else self._failures + 1
        self._pause(selector, min(self._poll, _FIRST_PAUSE * 2 ** min(self._failures, 16)))

    def _do_without_events(self, reason: str, lived: float) -> None:
        """Look at the cards by polls alone, and say so."""
        self._deaf_rounds = self._deaf_rounds + 1 if lived < _PROVEN * self._hang_after else 0
        self._deaf = f"no events, cards are looked at every {self._poll:g} s: {reason}"
        self._log.warning("%s", self._deaf)
        if self.snapshot.state == "running":
            self._publisher.publish(replace(self.snapshot, reason=self._deaf, taken=time.monotonic()))

    def _leave_alone(self, index: int, reason: str) -> None:
        """Blame one card for a call that hangs, and show it at once."""
        snapshot = self.snapshot
        self._log.warning("%s; the card is left alone for %g s", reason, self._left_alone)
        card = next((card for card in snapshot.cards if card.index == index), None)
        self._hangs.add(index, card, reason)
        if card is not None and snapshot.state == "running":
            telemetry = MappingProxyType({**snapshot.telemetry, card.uuid: Telemetry(reason, TIMEOUT)})
            self._publisher.publish(replace(snapshot, telemetry=telemetry, taken=time.monotonic()))
        elif snapshot.state != "running":
            self._fail(reason)

    def _pause(self, selector: selectors.BaseSelector, seconds: float) -> None:
        end = time.monotonic() + seconds
        while not self._stopping.is_set() and (left := end - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                _drain(key)
            if self._asked.is_set():
                self._asked.clear()
                return


def _drain(key: selectors.SelectorKey) -> None:
    with contextlib.suppress(BlockingIOError):
        os.read(key.fd, 4096)
