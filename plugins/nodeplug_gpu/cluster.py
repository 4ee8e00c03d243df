"""What of the cards the cluster is to know: what is free, labels, warnings, and what gpushare's tools look for.

Owns: one report from what is known at one moment, and the number that tells a later one.
Refuses: to guess: while kubelet does not say who holds what, there is no report, and the last one stays in force.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug import ClusterReport, DeviceId, NodeConfigMap, PodReport, PodWarning
from nodeplug.fields import show_quantity
from nodeplug_gpu import gpushare_objects, report
from nodeplug_gpu.allocations import each_once
from nodeplug_gpu.config import GpuConfig, Memory
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName, annotation_of, encode
from nodeplug_gpu.holders import Container
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.labels import labels
from nodeplug_gpu.overuse import OveruseWatch, Usage
from nodeplug_gpu.pool import PoolMember
from nodeplug_gpu.sharing.memory import MemorySharing
from nodeplug_gpu.sizes import unknown
from nodeplug_gpu.tracker import InventoryTracker

_NOBODY: Final = "?"
"""The namespace of a holder of which kubelet has told the uid alone."""


@dataclass(slots=True)
class ClusterView:
    """Makes reports, in the thread that updates the inventory; `latest` may be read by any.

    Attributes:
        config: of the section.
        tracker: has the inventory.
        overuse: knows who uses too much.
        node: the node's name in the cluster.
        latest: the report in force; None before the first.
    """

    config: GpuConfig
    tracker: InventoryTracker
    overuse: OveruseWatch
    node: str
    latest: ClusterReport | None = None
    _known: dict[str, FreeMemory] = field(default_factory=dict)
    _untold: list[tuple[MemorySharing, frozenset[DeviceId], int]] = field(default_factory=list)
    _since: dict[tuple[str, str], int] = field(default_factory=dict)

    def update(self) -> bool:
        """Make a report of what is known now; return whether it says something new."""
        inventory = self.tracker.inventory
        if inventory.snapshot.state == "starting" or inventory.allocations_unknown:
            return False
        grants = {
            name: one.told.grants() for name, one in self.tracker.sharings.items() if isinstance(one, MemorySharing)
        }
        hangs = inventory.snapshot.state == "failed" and self.latest is not None  # its cards are still there
        made = ClusterReport(
            labels=self.latest.labels if hangs and self.latest else labels(inventory.snapshot, self.config),
            annotations={annotation_of(one.resource): encode(one) for one in self._free()},
            pods=tuple(self._pods()),
            config_maps=tuple(self._config_maps()),
        )
        before, self.latest = self.latest, made
        self._untold = list(self._held_units(grants))
        return made != before

    def report(self) -> ClusterReport | None:
        """Return the report in force, for the cluster to be told now; None before the first."""
        for sharing, held, grants in self._untold:
            sharing.told.tell(held, grants)
        return self.latest

    def _held_units(self, grants: Mapping[str, int]) -> Iterator[tuple[MemorySharing, frozenset[DeviceId], int]]:
        for entry in self.config.resources:
            sharing, inventory = self.tracker.sharings.get(entry.resource), self.tracker.inventory
            if isinstance(sharing, MemorySharing) and entry.resource in grants:
                members = inventory.members_of(entry.resource)
                found = [one for it in members for one in report.allocations_of(inventory, entry, it.card.uuid)]
                held = frozenset(unit for one in found if one.orphaned is None for unit in one.ids)
                withheld = [unit for one in members for unit in one.withheld]
                yield sharing, held.union(withheld), grants[entry.resource]

    # --- what is free

    def _free(self) -> Iterator[FreeMemory]:
        """Yield what is free of each resource; none where claims are allocated: the scheduler knows it from slices."""
        for entry in () if self.tracker.host.serves_claims else self.config.resources:
            sharing = self.tracker.sharings.get(entry.resource)
            if not isinstance(entry, Memory) or not isinstance(sharing, MemorySharing):
                continue
            members = self.tracker.inventory.members_of(entry.resource)
            cards = [self._card(entry, sharing, member) for member in members if not unknown(entry, member.card)]
            held = self._held(entry)
            found = FreeMemory(
                entry.resource,
                0,
                sharing.unit,
                entry.policy,
                tuple(sorted(cards, key=lambda one: (one.minor, one.key))),
                tuple(held),
                tuple(held.values()),
            )
            known = self._known.get(entry.resource)
            if known is None or replace(known, seq=0) != found:
                # The time in milliseconds is larger than any number of a daemon before this one.
                seq = max(int(time.time() * 1000), known.seq + 1 if known is not None else 0)
                known = self._known[entry.resource] = replace(found, seq=seq)
            yield known

    def _card(self, entry: Memory, sharing: MemorySharing, member: PoolMember) -> FreeCard:
        card, units = member.card, sharing.advertised(member)
        held: set[str] = set()
        more = 0
        for one in each_once(report.allocations_of(self.tracker.inventory, entry, card.uuid)):
            if one.orphaned is None:
                held.update(one.ids)
            else:
                more += report.in_units(self.tracker, entry, member, one)
        free = max(units - len(held | member.withheld) - more, 0)
        return FreeCard(card_key(card.uuid), card.uuid, card.minor, units, free, member.healthy)

    def _held(self, entry: Memory) -> Mapping[PodName, Mapping[str, int]]:
        """Return the units by card of the pods that are counted as holders, in order of the pods.

        Not those that kubelet has not reported yet. What a pod's init container has left to it is its own, whose name
        is known, and not also that of a holder of which the uid alone is.
        """
        found: dict[PodName, dict[str, int]] = {}
        for member in self.tracker.inventory.members_of(entry.resource):
            if unknown(entry, member.card):
                continue
            card = card_key(member.card.uuid)
            held = report.allocations_of(self.tracker.inventory, entry, member.card.uuid)
            named = (one for one in held if one.container.pod)
            for one in each_once(sorted(named, key=lambda one: one.container.namespace in {"", _NOBODY})):
                units = found.setdefault(PodName(one.container.namespace or _NOBODY, one.container.pod), {})
                units[card] = units.get(card, 0) + report.in_units(self.tracker, entry, member, one)
        return dict(sorted(found.items()))

    # --- pods

    def _pods(self) -> Iterator[PodReport]:
        warnings: dict[tuple[str, str], list[PodWarning]] = {}
        for (container, uuid), one in sorted(self.overuse.usage.items(), key=lambda item: item[0]):
            if one.warned is not None:
                warning = _unallocated(container, uuid, one.used)
                if not one.unallocated:
                    warning = _overused(container, uuid, one)
                warnings.setdefault((container.namespace, container.pod), []).append(warning)
        annotated = self._annotated()
        for namespace, pod in sorted(warnings.keys() | annotated.keys()):
            annotations, defaults = annotated.get((namespace, pod), ({}, {}))
            yield PodReport(
                namespace=namespace,
                name=pod,
                annotations=annotations,
                defaults=defaults,
                warnings=tuple(warnings.get((namespace, pod), ())),
            )

    def _annotated(self) -> Mapping[tuple[str, str], tuple[Mapping[str, str], Mapping[str, str]]]:
        entry = gpushare_objects.entry_of(self.config)
        if entry is None:
            return {}
        members = self.tracker.inventory.members_of(entry.resource)
        sharing = self.tracker.sharings.get(entry.resource)
        if not isinstance(sharing, MemorySharing):
            return {}
        held = [
            gpushare_objects.Held(one.container, member.card.minor, sharing.units(member), frozenset(one.ids))
            for member in members
            if not unknown(entry, member.card)
            for one in report.allocations_of(self.tracker.inventory, entry, member.card.uuid)
            if one.orphaned is None
            and not one.claims
            and one.container.pod
            and one.container.namespace not in {"", _NOBODY}
        ]
        pods = {(one.container.namespace, one.container.pod) for one in held}
        now = int(time.time() * 1e9)
        self._since = {pod: self._since.get(pod, now) for pod in pods}
        return gpushare_objects.annotations(held, self._since)

    def _config_maps(self) -> Iterator[NodeConfigMap]:
        entry = gpushare_objects.entry_of(self.config)
        if entry is not None:
            members = self.tracker.inventory.members_of(entry.resource)
            minors = sorted(member.card.minor for member in members if not member.healthy)
            yield gpushare_objects.unhealthy(self.node, minors)


def _overused(container: Container, uuid: str, one: Usage) -> PodWarning:
    return PodWarning(
        "GpuMemoryOverused",
        f"container {container.name} {one.in_words(f' of {uuid}')}: its neighbours may run out of memory; give the "
        "container more units, or limit it with mps",
    )


def _unallocated(container: Container, uuid: str, used: int) -> PodWarning:
    return PodWarning(
        "GpuUsedWithoutAllocation",
        f"container {container.name} uses {show_quantity(used)} of {uuid}, and kubelet reports no allocation of it: "
        "does its pod or image set NVIDIA_VISIBLE_DEVICES?",
    )
