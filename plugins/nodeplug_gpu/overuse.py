"""Who uses more memory of a card than was promised.

Owns: memory really used per container and card, how long it has been too much, the warning, and, where the
administrator wants it, the end of the processes.
Refuses: to guess: a process whose container is not known is counted as nobody's, and never ended; nor is one whose
container holds nothing of the card as far as kubelet tells (it tells nothing of init containers).
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import Host
from nodeplug.fields import show_quantity
from nodeplug_gpu.cards import GpuProcess, Uuid
from nodeplug_gpu.config import Memory, Overuse
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.ledger import Container

TERM_PATIENCE: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""

Place = tuple[Container, Uuid]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container uses of a card.

    Attributes:
        used: bytes, of all its processes.
        allocated_bytes: bytes; None where nothing was allocated_bytes or nobody knows.
        pids: its processes on the card.
        unallocated: it uses a card that is sold by memory, and holds nothing of it.
        over_since: since when it uses too much; None while it does not.
        warned: when the log said so.
        terminated: when processes of it got SIGTERM.
        ending: those processes.
    """

    used: int
    allocated_bytes: int | None
    pids: tuple[int, ...]
    unallocated: bool = False
    over_since: float | None = None
    warned: float | None = None
    terminated: float | None = None
    ending: tuple[int, ...] = ()


@dataclass(slots=True)
class OveruseWatch:
    """Follows the inventory. Called in one thread; `usage` and `unattributed` may be read by any.

    Attributes:
        entries: the memory entries, by resource name.
        usage: by container and card.
        unattributed: bytes per card of processes that belong to no container that is known.
    """

    entries: Mapping[str, Memory]
    host: Host
    containers: Callable[[], Containers] = Containers
    clock: Callable[[], float] = time.monotonic
    usage: Mapping[Place, Usage] = field(default_factory=dict)
    unattributed: Mapping[Uuid, int] = field(default_factory=dict)

    def reconcile(self, inventory: Inventory) -> None:
        """Take in who runs what, then warn or end what lasts too long."""
        now = self.clock()
        found, self.unattributed = self._measured(inventory.snapshot.processes)
        allocated = self._allocated(inventory)
        sold = self._sold(inventory)
        usage: dict[Place, Usage] = {}
        for place, processes in found.items():
            used = sum(process.used or 0 for process in processes)
            pids = tuple(sorted(process.pid for process in processes))
            allocated_bytes, entry = allocated.get(place, (None, sold.get(place[1])))
            one = Usage(used, allocated_bytes, pids, unallocated=allocated_bytes is None and entry is not None)
            usage[place] = self._judged(place, one, entry.overuse, now) if entry is not None else one
        self.usage = usage

    def stop(self) -> None:
        """Nothing runs between two looks."""

    def _measured(
        self, processes: Iterable[GpuProcess]
    ) -> tuple[Mapping[Place, Sequence[GpuProcess]], Mapping[Uuid, int]]:
        containers = self.containers()
        found: dict[Place, list[GpuProcess]] = {}
        unattributed: dict[Uuid, int] = {}
        for process in processes:
            who = containers.of(process.pid)
            if who is None:
                unattributed[process.card] = unattributed.get(process.card, 0) + (process.used or 0)
            else:
                found.setdefault((who, process.card), []).append(process)
        return found, unattributed

    def _allocated(self, inventory: Inventory) -> Mapping[Place, tuple[int, Memory]]:
        allocated: dict[Place, tuple[int, Memory]] = {}
        for use in inventory.allocations:
            entry = self.entries.get(use.resource)
            if entry is not None and use.allocated_bytes is not None:
                before = allocated.get((use.who, use.card), (0, entry))[0]
                allocated[use.who, use.card] = (before + use.allocated_bytes, entry)
        return allocated

    def _sold(self, inventory: Inventory) -> Mapping[Uuid, Memory]:
        """Return the entry of each card that is sold by memory; none while nobody knows who holds what."""
        if inventory.allocations_unknown:
            return {}
        return {
            member.card.uuid: entry for name, entry in self.entries.items() for member in inventory.members_of(name)
        }

    def _judged(self, place: Place, one: Usage, rules: Overuse, now: float) -> Usage:
        before = self.usage.get(place)
        if before is not None and before.terminated is not None and not set(before.ending) & set(one.pids):
            before = None  # they have ended; those that run now have all their time
        if one.used <= (one.allocated_bytes or 0) + rules.tolerance:
            if before is not None and before.warned is not None:
                self.host.log.info("%s is within its promise again", _named(place))
            return one
        since = before.over_since if before is not None and before.over_since is not None else now
        one = replace(one, over_since=since)
        if before is not None:
            one = replace(one, warned=before.warned, terminated=before.terminated, ending=before.ending)
        if one.warned is None and now - since >= rules.grace:
            self._warn(place, one, now - since)
            one = replace(one, warned=now)
        return self._ended(place, one, rules, now)

    def _warn(self, place: Place, one: Usage, lasted: float) -> None:
        if one.unallocated:
            self.host.log.warning(
                "%s uses %s for %.0f s now and holds nothing of it, as far as kubelet tells: does its pod or image set "
                "NVIDIA_VISIBLE_DEVICES?",
                _named(place),
                show_quantity(one.used),
                lasted,
            )
            return
        self.host.log.warning(
            "%s uses %s, promised are %s, for %.0f s now: its neighbours may run out of memory; give the container "
            "more units, or limit it with mps",
            _named(place),
            show_quantity(one.used),
            show_quantity(one.allocated_bytes or 0),
            lasted,
        )

    def _ended(self, place: Place, one: Usage, rules: Overuse, now: float) -> Usage:
        if rules.kill_after is None or one.unallocated or one.warned is None or now - one.warned < rules.kill_after:
            return one
        if one.terminated is None:
            self.host.log.warning("%s: its processes %s get SIGTERM", _named(place), _listed(one.pids))
            self._signal(place, one.pids, signal.SIGTERM)
            return replace(one, terminated=now, ending=one.pids)
        if now - one.terminated >= TERM_PATIENCE:
            left = sorted(set(one.ending) & set(one.pids))
            self.host.log.warning("%s: its processes %s get SIGKILL", _named(place), _listed(left))
            self._signal(place, left, signal.SIGKILL)
        return one

    def _signal(self, place: Place, pids: Sequence[int], number: signal.Signals) -> None:
        """Signal the processes that still are of the container: a pid may be another's by now."""
        for pid in pids:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                try:
                    if self.containers().of(pid) == place[0]:
                        signal.pidfd_send_signal(descriptor, number)
                finally:
                    os.close(descriptor)


def _named(place: Place) -> str:
    who, card = place
    return f"container {who.namespace}/{who.pod}/{who.container} on {card}"


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
