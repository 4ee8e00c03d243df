"""Containers that use more memory of a card than they were allocated.

Owns: memory in use per container and card, for how long it has been too much, the warning, and, where the administrator
wants it, the termination of the processes.
Refuses: to guess: the memory of a process whose container is not known is unattributed, and the process is never
terminated; nor is one whose container has, as far as kubelet reports, no allocation of the card. Of containers that
share a claim and exceed it together, the one that uses most is terminated.
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
from nodeplug_gpu.cards import GpuProcess, Utilization, Uuid
from nodeplug_gpu.config import Memory, Overuse
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.holders import Container
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.sharers import Sharers, sharers

TERM_TIMEOUT: Final = 10.0
"""Seconds between SIGTERM and SIGKILL."""

Key = tuple[Container, Uuid]


@dataclass(frozen=True, slots=True)
class Usage:
    """What a container uses of a card.

    Attributes:
        used: bytes, of all its processes.
        allocated_bytes: memory that it was allocated; None without an allocation, or while none is known.
        pids: its processes on the card.
        unallocated: it uses a card that is shared by memory, and has no allocation of it.
        over_since: since when it has used too much; None while it does not.
        warned: when that was logged.
        terminated: when its processes got SIGTERM.
        ending: those processes.
        utilization: how busy they keep the card; None where the driver does not tell.
        sharers: who shares its claim; None where nobody does.
        together: bytes that all of them use.
        most: none of them uses more.
    """

    used: int
    allocated_bytes: int | None
    pids: tuple[int, ...]
    unallocated: bool = False
    over_since: float | None = None
    warned: float | None = None
    terminated: float | None = None
    ending: tuple[int, ...] = ()
    utilization: Utilization | None = None
    sharers: Sharers | None = None
    together: int = 0
    most: bool = True

    def in_words(self, of: str = "") -> str:
        """Return what it uses, `of` a card, and what it was allocated."""
        more = f" ({show_quantity(self.together)} with those that share its claim)" if self.sharers is not None else ""
        return f"uses {show_quantity(self.used)}{of}{more} and was allocated {show_quantity(self.allocated_bytes or 0)}"

    def within(self, tolerance: int) -> bool:
        """Whether it uses no more than it was allocated, alone and with those that share it."""
        if self.sharers is not None:
            most = self.sharers.allocated_bytes + tolerance * len(self.sharers.containers)
            if self.together > most:
                return False
        return self.used <= (self.allocated_bytes or 0) + tolerance


@dataclass(slots=True)
class OveruseWatch:
    """Watches the processes of the inventory. Called in one thread; `usage` and `unattributed` may be read by any.

    Attributes:
        entries: the memory entries, by resource name.
        usage: by container and card.
        unattributed: bytes per card of processes in no known container.
    """

    entries: Mapping[str, Memory]
    host: Host
    containers: Callable[[], Containers] = Containers
    clock: Callable[[], float] = time.monotonic
    usage: Mapping[Key, Usage] = field(default_factory=dict)
    unattributed: Mapping[Uuid, int] = field(default_factory=dict)

    def reconcile(self, inventory: Inventory) -> None:
        """Measure who uses what, then warn about, or terminate, what has lasted too long."""
        now = self.clock()
        found, self.unattributed = self._measure(inventory.snapshot.processes)
        allocated = self._allocated(inventory)
        shared = sharers(inventory.allocations)
        entries = self._entry_by_card(inventory)
        unnamed = {(one.container.namespace, one.card) for one in inventory.allocations if one.container.claim}
        usage: dict[Key, Usage] = {}
        for key, processes in found.items():
            used = _used(processes)
            pids = tuple(sorted(process.pid for process in processes))
            # It may use a claim that kubelet has not named its containers of, as it never does of init containers.
            other = None if (key[0].namespace, key[1]) in unnamed else entries.get(key[1])
            allocated_bytes, entry = allocated.get(key, (None, other))
            busy = Utilization.together(process.utilization for process in processes)
            unallocated = allocated_bytes is None and entry is not None
            one = Usage(used, allocated_bytes, pids, unallocated=unallocated, utilization=busy)
            if key in shared:
                parts = [_used(found.get((who, key[1]), ())) for who in shared[key].containers]
                one = replace(one, sharers=shared[key], together=sum(parts), most=used == max(parts))
            usage[key] = self._check(key, one, entry.overuse, now) if entry is not None else one
        self.usage = usage

    def stop(self) -> None:
        """Nothing runs between two calls."""

    def _measure(
        self, processes: Iterable[GpuProcess]
    ) -> tuple[Mapping[Key, Sequence[GpuProcess]], Mapping[Uuid, int]]:
        containers = self.containers()
        found: dict[Key, list[GpuProcess]] = {}
        unattributed: dict[Uuid, int] = {}
        for process in processes:
            container = containers.of(process.pid)
            if container is None:
                unattributed[process.card] = unattributed.get(process.card, 0) + (process.used or 0)
            else:
                found.setdefault((container, process.card), []).append(process)
        return found, unattributed

    def _allocated(self, inventory: Inventory) -> Mapping[Key, tuple[int, Memory]]:
        allocated: dict[Key, tuple[int, Memory]] = {}
        for one in inventory.allocations:
            entry = self.entries.get(one.resource)
            if entry is not None and one.allocated_bytes is not None:
                before = allocated.get((one.container, one.card), (0, entry))[0]
                allocated[one.container, one.card] = (before + one.allocated_bytes, entry)
        return allocated

    def _entry_by_card(self, inventory: Inventory) -> Mapping[Uuid, Memory]:
        """Return the entry of each card that is shared by memory; none while allocations are not known."""
        if inventory.allocations_unknown:
            return {}
        return {
            member.card.uuid: entry for name, entry in self.entries.items() for member in inventory.members_of(name)
        }

    def _check(self, key: Key, one: Usage, rules: Overuse, now: float) -> Usage:
        before = self.usage.get(key)
        if before is not None and before.terminated is not None and not set(before.ending) & set(one.pids):
            before = None  # they have ended; those that run now get the full grace period
        if one.within(rules.tolerance):
            if before is not None and before.warned is not None:
                self.host.log.info("%s is within its allocation again", _named(key))
            return one
        since = before.over_since if before is not None and before.over_since is not None else now
        one = replace(one, over_since=since)
        if before is not None:
            one = replace(one, warned=before.warned, terminated=before.terminated, ending=before.ending)
        if one.warned is None and now - since >= rules.grace:
            self._warn(key, one, now - since)
            one = replace(one, warned=now)
        return self._terminate(key, one, rules, now)

    def _warn(self, key: Key, one: Usage, lasted: float) -> None:
        if one.unallocated:
            self.host.log.warning(
                "%s has used %s for %.0f s, and kubelet reports no allocation of it: does its pod or image set "
                "NVIDIA_VISIBLE_DEVICES?",
                _named(key),
                show_quantity(one.used),
                lasted,
            )
            return
        self.host.log.warning(
            "%s %s, for %.0f s now: its neighbours may run out of memory; give the container more units, or limit it "
            "with mps",
            _named(key),
            one.in_words(),
            lasted,
        )

    def _terminate(self, key: Key, one: Usage, rules: Overuse, now: float) -> Usage:
        if rules.kill_after is None or one.unallocated or one.warned is None or now - one.warned < rules.kill_after:
            return one
        if one.terminated is None and not one.most:
            return one
        if one.terminated is None:
            self.host.log.warning("%s: its processes %s get SIGTERM", _named(key), _listed(one.pids))
            self._signal(key, one.pids, signal.SIGTERM)
            return replace(one, terminated=now, ending=one.pids)
        if now - one.terminated >= TERM_TIMEOUT:
            left = sorted(set(one.ending) & set(one.pids))
            self.host.log.warning("%s: its processes %s get SIGKILL", _named(key), _listed(left))
            self._signal(key, left, signal.SIGKILL)
        return one

    def _signal(self, key: Key, pids: Sequence[int], number: signal.Signals) -> None:
        """Signal the processes that still belong to the container: a pid may have been reused."""
        for pid in pids:
            with suppress(OSError):
                descriptor = os.pidfd_open(pid)
                try:
                    if self.containers().of(pid) == key[0]:
                        signal.pidfd_send_signal(descriptor, number)
                finally:
                    os.close(descriptor)


def _used(processes: Iterable[GpuProcess]) -> int:
    return sum(process.used or 0 for process in processes)


def _named(key: Key) -> str:
    container, card = key
    return f"container {container} on {card}"


def _listed(pids: Sequence[int]) -> str:
    return ", ".join(map(str, pids))
