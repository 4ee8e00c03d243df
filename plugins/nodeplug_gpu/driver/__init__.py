"""The interface of every driver.

Owns: the one interface between drivers and the plugin.
Refuses: sharing, health, kubelet.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from nodeplug_gpu.cards import GpuEvent, Snapshot, Uuid
from nodeplug_gpu.driver.wire import LimitAnswer

Observer = Callable[[Snapshot, Sequence[GpuEvent]], None]
"""Called from a driver's own thread after each poll that differs from the one before, and at once for events."""


class Driver(Protocol):
    """A source of cards. Methods may be called from any thread; none but `limit` waits for the hardware."""

    @property
    def snapshot(self) -> Snapshot:
        """The latest snapshot; `starting` before the first."""
        ...

    def start(self, observer: Observer) -> None:
        """Start to poll. Returns at once; never raises for a missing or broken driver: the snapshot says so."""
        ...

    def stop(self) -> None:
        """Stop within a second, abandoning a hung driver call; may be called twice or without a start."""
        ...

    def poll(self) -> None:
        """Ask for a poll now. Returns at once."""
        ...

    def limit(self, card: Uuid, cgroup: Path, size: int, timeout: float) -> LimitAnswer:
        """Limit the memory that a cgroup has of a card, in bytes. Waits, for `timeout` seconds at most.

        Never raises for a driver that does not do it: the answer has the reason.
        """
        ...
