"""A driver that is watched."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest

from nodeplug_gpu.cards import GpuEvent, Snapshot
from nodeplug_gpu.driver import Driver


@dataclass(eq=False)
class Watched:
    """A driver, and everything that it told its observer."""

    driver: Driver
    snapshots: list[Snapshot] = field(default_factory=list)
    events: list[GpuEvent] = field(default_factory=list)

    def start(self) -> None:
        self.driver.start(self._observe)

    def _observe(self, snapshot: Snapshot, events: Sequence[GpuEvent]) -> None:
        self.events += events
        self.snapshots.append(snapshot)

    def until(self, true: Callable[[Snapshot], object], seconds: float = 30.0) -> Snapshot:
        """Wait for a snapshot of which something is true."""
        end = time.monotonic() + seconds
        while not true(snapshot := self.driver.snapshot):
            if time.monotonic() > end:
                pytest.fail(f"the driver never got there; its last snapshot is {snapshot}")
            time.sleep(0.005)
        return snapshot

    def running(self) -> Snapshot:
        return self.until(lambda snapshot: snapshot.state == "running")

    def event(self, true: Callable[[GpuEvent], bool]) -> GpuEvent:
        self.until(lambda _: any(map(true, self.events)))
        return next(event for event in self.events if true(event))
