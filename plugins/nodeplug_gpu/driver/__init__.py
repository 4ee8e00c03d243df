"""Where cards come from: the interface that every driver has.

Owns: the one interface between drivers and the plugin.
Refuses: sharing, health, kubelet.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from nodeplug_gpu.cards import GpuEvent, Snapshot

Observer = Callable[[Snapshot, Sequence[GpuEvent]], None]
"""Called from a driver's own thread after each look that differs from the one before, and at once for events."""


class Driver(Protocol):
    """A source of cards. Methods may be called from any thread; none of them waits for the hardware."""

    @property
    def snapshot(self) -> Snapshot:
        """The latest look; `starting` before the first."""
        ...

    def start(self, observer: Observer) -> None:
        """Begin to look. Returns at once; never raises for a missing or broken driver: the snapshot says so."""
        ...

    def stop(self) -> None:
        """End within a second, a hanging driver call left behind; may be called twice or without a start."""
        ...

    def poll(self) -> None:
        """Ask for a look now. Returns at once."""
        ...
