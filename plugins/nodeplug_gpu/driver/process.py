"""NVML in a process of its own, supervised and replaced.

Owns: one thread that starts the driver process, reads its frames, supervises it, kills it and starts the next one.
Refuses: to wait for the hardware, and to load a library of the driver into the daemon: what hangs or crashes in the
driver, or is replaced on disk, costs a process and never the daemon.

States:
    absent   the library or the kernel module is not there; looked for at each poll
    failed   it is there and does not work; the process is replaced, fast at first, then once per poll
A process that exits to load a new library, or because cards were added, is replaced at once, and the snapshot stays.
The same holds when a call about one card hangs: that card alone gets an error, and the next process skips it for a
while; and when only waiting for events hangs: the next process polls without them.
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

from nodeplug_gpu.cards import GpuEvent, Snapshot, Telemetry, Uuid
from nodeplug_gpu.driver import Observer
from nodeplug_gpu.driver.bus import bound
from nodeplug_gpu.driver.hangs import TIMEOUT, Hangs
from nodeplug_gpu.driver.orders import Orders
from nodeplug_gpu.driver.publish import Log, Publisher
from nodeplug_gpu.driver.running import RunningProcess
from nodeplug_gpu.driver.wire import Frame, LimitAnswer, PollResult

_MIN_BACKOFF: Final = 0.05
"""Seconds before a failed process is replaced; doubled each time, up to one poll interval."""
_MAX_UNKILLABLE: Final = 3
"""Processes that SIGKILL did not end. With so many there is no point in starting one more."""
_STABLE: Final = 10
"""Multiple of `hang_after` after which waiting for events counts as working again."""
_KILL_TIMEOUT: Final = 0.3
"""Seconds that a killed process has to end before it counts as unkillable."""


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
        retry_after: float = 120.0,
        cgroups: Path | None = None,
    ) -> None:
        """Make a driver that does nothing yet.

        Args:
            root: below which the driver is installed; `/`, or a path such as `/run/nvidia/driver`.
            poll: seconds between two polls.
            hang_after: seconds after which a call that has not returned counts as hung. Attaching to a card may
                take four times as long.
            log: for what goes wrong.
            sysfs: where sysfs is mounted.
            retry_after: seconds after which a card whose call hung is queried again; doubled each time that it hangs
                again, because no card is polled meanwhile.
            cgroups: where cgroup v2 should be mounted, if it matters which cards can have limits by cgroup.
        """
        self._poll, self._hang_after, self._log = poll, hang_after, log
        heartbeat = max(0.02, min(1.0, hang_after / 4))
        self._settings = {"root": str(root), "sysfs": str(sysfs), "poll": poll, "heartbeat": heartbeat}
        self._settings["cgroups"] = "" if cgroups is None else str(cgroups)
        self._orders = Orders()
        self._publisher = Publisher(log)
        self._hangs = Hangs(retry_after)
        self._sysfs = sysfs
        self._bound: tuple[str, ...] = ()
        self._first_poll = float("inf")
        self._unkillable: list[RunningProcess] = []
        self._failures = self._generation = self._pid = 0
        self._stopping = threading.Event()
        self._asked = threading.Event()
        self._waker: socket.socket | None = None
        self._thread: threading.Thread | None = None

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot."""
        return self._publisher.snapshot

    @property
    def pid(self) -> int:
        """The driver process that runs now; 0 without one."""
        return self._pid

    @property
    def unkillable(self) -> int:
        """How many processes hang in the kernel, where not even SIGKILL ends them."""
        return sum(not process.ended for process in self._unkillable)

    def start(self, observer: Observer) -> None:
        """Start to poll, in a thread of its own."""
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
            self._thread.join(2 * _KILL_TIMEOUT)
        if self._waker is not None:
            self._waker.close()

    def poll(self) -> None:
        """Ask for a poll now."""
        self._asked.set()
        self._signal()

    def limit(self, card: Uuid, cgroup: Path, size: int, timeout: float) -> LimitAnswer:
        """Have the driver limit the memory that a cgroup has of a card, and read the limit back."""
        number = self._orders.add(card, cgroup, size)
        self._signal()
        snapshot = self.snapshot
        why = "" if snapshot.state == "running" else f": it is {snapshot.state}: {snapshot.reason}"
        return self._orders.wait(number, timeout, f"the driver did not answer within {timeout:g} s{why}")

    def _signal(self) -> None:
        with contextlib.suppress(OSError):  # a full buffer wakes it as well, and a closed one has no reader
            if self._waker is not None:
                self._waker.send(b".")

    def _run(self, wake: socket.socket) -> None:
        with wake, selectors.DefaultSelector() as selector:
            selector.register(wake, selectors.EVENT_READ)
            while not self._stopping.is_set():
                self._serve(selector)

    def _serve(self, selector: selectors.BaseSelector) -> None:
        """Run one driver process, from before its start to after its end."""
        if self.unkillable >= _MAX_UNKILLABLE:
            self._fail(f"{self.unkillable} driver processes hang in the kernel; the node needs a reboot")
            self._pause(selector, self._poll)
            return
        self._unkillable = [process for process in self._unkillable if not process.ended]
        hangs = self._hangs
        if not hangs.cards:  # which are known by their index on this very bus
            self._bound = bound(self._sysfs)
        settings = self._settings | {"skip": hangs.cards, "bound": self._bound, "events": not hangs.no_events}
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
        if not process.kill(_KILL_TIMEOUT):
            self._unkillable.append(process)
        self._after(selector, process, time.monotonic() - began)

    def _attend(self, selector: selectors.BaseSelector, process: RunningProcess) -> None:
        """Read a process until it is to be replaced."""
        process.attach(selector)
        wait = 0.0
        self._first_poll = float("inf")
        while not process.exit_reason and not self._stopping.is_set():
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
            for number, line in self._orders.unsent():
                if process.send(line):  # else its pipe is full: after its next frame it is tried again
                    self._orders.sent(number)
            if self._hangs and time.monotonic() > self._first_poll + self._hangs.seconds and not self.unkillable:
                # A process that still hangs in the kernel shows that the card has not recovered.
                process.retire("what hung is retried")
                self._hangs.retried()
            # The heartbeat is checked only when everything was read: the observer may have been slow.
            wait = 0.0 if ready else process.check_heartbeat()
        process.detach(selector)
        hung = next((card.uuid for card in self.snapshot.cards if card.index == process.hung), None)
        again = process.hangs or process.planned
        self._orders.lost(process.exit_reason or "it was stopped", again=again, hung=hung)

    def _take(self, frame: Frame) -> None:
        snapshot = self.snapshot
        if isinstance(frame, GpuEvent):
            self._publisher.publish(snapshot, (frame,))
        elif isinstance(frame, LimitAnswer):
            self._orders.answered(frame)
        elif isinstance(frame, PollResult) and frame.state == "running":
            self._first_poll = min(self._first_poll, time.monotonic())
            if not frame.cards and self._hangs.cards:
                self._fail(self._hangs.reason)
                return
            frame = self._hangs.shown(frame)
            if not self._hangs.cards:
                self._hangs.over()
            if snapshot.state != "running":
                self._log.info("the driver %s shows %d cards", frame.driver_version, len(frame.cards))
            self._publisher.publish(
                Snapshot(
                    "running",
                    self._hangs.no_events,
                    driver_version=frame.driver_version,
                    cards=frame.cards,
                    telemetry=frame.telemetry,
                    processes=frame.processes,
                    taken=frame.taken,
                    generation=self._generation,
                    unreadable=frame.unreadable,
                    cuda_version=frame.cuda_version,
                    mig_capable=frame.mig_capable,
                    pairs=frame.pairs,
                    limits=frame.limits,
                )
            )
        elif isinstance(frame, PollResult):
            self._fail(frame.reason, absent=frame.state == "absent")

    def _fail(self, reason: str, *, absent: bool = False) -> None:
        """Publish a failure, with the cards that were seen last."""
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
            self._log.info("%s; a new driver process is started", process.exit_reason)
            self._hangs.clear()
        elif process.events_hang:
            self._do_without_events(process.exit_reason, lived)
            return
        elif process.hung is not None and process.hung not in self._hangs.cards:
            self._skip_card(process.hung, process.exit_reason)
            return
        elif (self.snapshot.reason, self.snapshot.generation) != (process.exit_reason, self._generation):
            self._fail(process.exit_reason)
        self._failures = 0 if lived > max(self._poll, 4 * self._hang_after) else self._failures + 1
        self._pause(selector, min(self._poll, _MIN_BACKOFF * 2 ** min(self._failures, 16)))

    def _do_without_events(self, reason: str, lived: float) -> None:
        """Go on by polling alone, and say so."""
        why = f"no events, cards are polled every {self._poll:g} s: {reason}"
        self._hangs.leave_out_events(why, again=lived < _STABLE * self._hang_after)
        self._log.warning("%s", why)
        if self.snapshot.state == "running":
            self._publisher.publish(replace(self.snapshot, reason=why, taken=time.monotonic()))

    def _skip_card(self, index: int, reason: str) -> None:
        """Attribute a hung call to one card, and publish that at once."""
        snapshot = self.snapshot
        self._log.warning("%s; the card is skipped for %g s", reason, self._hangs.seconds)
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
