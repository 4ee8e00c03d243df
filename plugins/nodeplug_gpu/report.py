"""What the plugin reports about itself: a JSON document for tools.

Owns: its shape, and what of it metrics count.
Refuses: rendering (the command does it), and Prometheus (`metrics`).
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodeplug import DeviceId, NotFound, ResourceName
from nodeplug_gpu import beside, utilization
from nodeplug_gpu.allocations import Allocation, each_once
from nodeplug_gpu.cards import Card, CardPair, MigInstance, Uuid
from nodeplug_gpu.config import GpuConfig, Memory, Mig, Resource, resource_names
from nodeplug_gpu.health import Condition
from nodeplug_gpu.holders import Container
from nodeplug_gpu.ids import whole
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.kernel.held import Held
from nodeplug_gpu.kernel.limits import NOT_CALLED, KernelLimits
from nodeplug_gpu.limits import BY_KERNEL, limits_in_words, mps_of
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record
from nodeplug_gpu.overuse import OveruseWatch, Usage
from nodeplug_gpu.pool import Pool, PoolMember
from nodeplug_gpu.sharing.memory import MemorySharing
from nodeplug_gpu.sharing.mig import MigInstances
from nodeplug_gpu.sizes import unknown
from nodeplug_gpu.tracker import InventoryTracker


def document(
    config: GpuConfig, tracker: InventoryTracker, overuse: OveruseWatch, kernel: KernelLimits | None = None
) -> Mapping[str, Any]:
    """Describe the driver, every card with its allocations, every resource, and the cards that are not advertised.

    docs/gpu.md lists the keys; keys are only ever added.
    """
    inventory = tracker.inventory
    pooled = {member.card.uuid for pool in inventory.pools.values() for member in pool.members}
    return {
        "node": tracker.host.node_name,
        "serve": "dra" if tracker.host.serves_claims else "device-plugin",
        "driver": {
            "name": config.driver,
            "state": inventory.snapshot.state,
            "reason": inventory.snapshot.reason,
            "version": inventory.snapshot.driver_version,
        },
        "conflict": inventory.conflict,
        "allocations_unknown": inventory.allocations_unknown,
        "cards": [
            _card(tracker, overuse, entry, member, kernel)
            for entry in config.resources
            for member in inventory.members_of(entry.resource)
        ],
        "unadvertised": [
            {"uuid": card.uuid, "index": card.index, "model": card.model}
            | {"reason": _unadvertised_reason(inventory, card.uuid)}
            for card in inventory.snapshot.cards
            if card.uuid not in pooled
        ],
        "unreadable": list(inventory.snapshot.unreadable),
        "resources": [
            *(one for entry in config.resources for one in _resources(tracker, entry)),
            *_orphaned_resources(inventory),
        ],
    }


def _unadvertised_reason(inventory: Inventory, uuid: Uuid) -> str:
    why = "no entry of `resources` chooses it"
    return inventory.conflicts.get(uuid) or "; ".join(filter(None, (why, inventory.unindexed.get(uuid))))


def _card(
    tracker: InventoryTracker,
    overuse: OveruseWatch,
    entry: Resource,
    member: PoolMember,
    kernel: KernelLimits | None,
) -> dict[str, Any]:
    inventory, card = tracker.inventory, member.card
    condition = inventory.conditions[card.uuid]
    allocations = sorted(allocations_of(inventory, entry, card.uuid), key=lambda one: one.container)
    sharing = tracker.sharings.get(entry.resource)
    without = _limits(tracker, entry, card)
    limits = without if kernel is None else _with_kernel(kernel, entry, card.uuid, without)
    held = {} if kernel is None else kernel.of_card(card.uuid)
    return {
        **_hardware(inventory, overuse, card),
        "state": condition.state,
        "allocatable": member.healthy,
        "reason": member.reason or condition.reason,
        "state_seconds": _seconds(condition),
        "resource": entry.resource,
        "sharing": entry.sharing,
        "limits": limits,
        "unit_bytes": sharing.unit if isinstance(sharing, MemorySharing) else None,
        "oversubscribe": entry.oversubscribe if isinstance(entry, Memory) else 1.0,
        "units": None if unknown(entry, card) else units(tracker, entry, member),
        "allocated_units": allocated_units(tracker, entry, member),
        "unconfirmed_units": tracker.allocations.pending_of_card(card.uuid, resource_names(entry)),
        "instances": [instance_entry(inventory, entry, member, one, allocations) for one in card.instances],
        "containers": [
            _container(one, overuse.usage.get((one.container, card.uuid)), in_units(tracker, entry, member, fresh))
            | _container_limits(held.get(one.container), limits, without, orphaned=one.orphaned is not None)
            for one, fresh in zip(allocations, each_once(allocations), strict=True)
        ],
        "unallocated_containers": [
            names_of(container) | {"used_bytes": one.used, "pids": list(one.pids)}
            for (container, uuid), one in sorted(overuse.usage.items(), key=lambda item: item[0])
            if uuid == card.uuid and one.unallocated
        ],
    }


def _hardware(inventory: Inventory, overuse: OveruseWatch, card: Card) -> dict[str, Any]:
    """Return what a card is and what it does, whatever it is advertised as."""
    telemetry = inventory.snapshot.telemetry.get(card.uuid)
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model,
        "pci": card.pci,
        "numa_node": card.numa_node,
        "nvlinks": dict(_nvlinks(inventory.snapshot.pairs, card.uuid)),
        "memory_bytes": card.memory or None,
        "used_bytes": telemetry.used if telemetry is not None else None,
        "utilization_percent": utilization.in_percent(telemetry.utilization if telemetry is not None else None),
        "unattributed_bytes": overuse.unattributed.get(card.uuid, 0),
    }


def _nvlinks(pairs: Sequence[CardPair], uuid: Uuid) -> Iterator[tuple[Uuid, int]]:
    """Yield the cards to which a card has NVLinks, with how many."""
    for pair in pairs:
        if uuid in {pair.one, pair.other} and pair.links:
            yield (pair.other if pair.one == uuid else pair.one), pair.links


def _limits(tracker: InventoryTracker, entry: Resource, card: Card) -> str:
    """Return what a card's limits are worth: its daemon caps a client only as long as every process must be one."""
    if mps_of(entry) is None:
        return limits_in_words(entry, card)
    folders = Folders.of(tracker.paths.run, card.uuid, tracker.paths.former)
    record = Record.read(folders.record)
    return limits_in_words(entry, card, record.caps if record is not None and record.exclusive else None)


def _with_kernel(kernel: KernelLimits, entry: Resource, uuid: Uuid, without: str) -> str:
    """Return what limits the containers that are allocated a card now."""
    if kernel.limits(entry, uuid):
        return BY_KERNEL
    shared = kernel.wanted and without.startswith("none")
    return f"none: {kernel.why_not(uuid)}" if shared else without


def _container_limits(held: Held | None, limits: str, without: str, *, orphaned: bool) -> dict[str, Any]:
    """Return what limits a container, which may have started under other circumstances than those of now."""
    if held is not None and held.hard:
        return {"limits": BY_KERNEL, "limit_bytes": held.hard}
    if orphaned:
        return {"limits": None, "limit_bytes": None}
    if limits == BY_KERNEL:
        why = held.error if held is not None else NOT_CALLED
        limits = f"none: {why}" if without.startswith("none") else without
    return {"limits": limits, "limit_bytes": None}


def allocations_of(inventory: Inventory, entry: Resource, uuid: Uuid) -> Sequence[Allocation]:
    """Return what is allocated of a card under a name of an entry, or under one that is no longer advertised."""
    names = resource_names(entry)
    return [
        one for one in inventory.allocations if one.card == uuid and (one.resource in names or one.orphaned is not None)
    ]


def allocated_units(tracker: InventoryTracker, entry: Resource, member: PoolMember) -> int | None:
    """Return how many units of a card are allocated, including pending ones; None if that is not known."""
    inventory, uuid = tracker.inventory, member.card.uuid
    if inventory.allocations_unknown:
        return None
    allocations = each_once(allocations_of(inventory, entry, uuid))
    reported = sum(in_units(tracker, entry, member, one) for one in allocations)
    pending = tracker.allocations.pending_of_card(uuid, resource_names(entry))
    return min(reported, units(tracker, entry, member)) + pending


def allocated_ids(inventory: Inventory, resource: str) -> int:
    """Return how many ids of a resource containers have."""
    return len({name for one in inventory.allocations if one.resource == resource for name in one.ids})


def in_units(tracker: InventoryTracker, entry: Resource, member: PoolMember, one: Allocation) -> int:
    """Return an allocation in current units: a card that is allocated in another way counts as a whole."""
    sharing = tracker.sharings.get(entry.resource)
    if one.orphaned is None or not one.ids:
        return len(one.ids)
    if isinstance(sharing, MemorySharing) and one.allocated_bytes is not None:
        return -(-one.allocated_bytes // sharing.unit)
    return len(one.ids) if one.orphaned == entry.sharing else units(tracker, entry, member)


def instance_entry(
    inventory: Inventory, entry: Resource, member: PoolMember, one: MigInstance, allocations: Sequence[Allocation]
) -> dict[str, Any]:
    """Describe a MIG instance of a card, with the resource that advertises it; None for none."""
    sharing, pool = inventory.sharings.get(entry.resource), inventory.pools[entry.resource]
    condition = inventory.conditions[one.uuid]
    return {
        "uuid": one.uuid,
        "profile": one.profile,
        "memory_bytes": one.memory,
        "resource": sharing.resource_of(one.profile, pool) if isinstance(sharing, MigInstances) else None,
        "containers": [str(use.container) for use in allocations if DeviceId(one.uuid) in map(whole, use.ids)],
        "state": condition.state,
        "allocatable": not member.reason_of(one),
        "reason": member.reason_of(one) or condition.reason,
        "state_seconds": _seconds(condition),
    }


def _seconds(condition: Condition) -> float:
    """Return for how long it has been so."""
    return round(max(time.monotonic() - condition.since, 0.0), 1)


def _container(allocation: Allocation, usage: Usage | None, card_units: int) -> dict[str, Any]:
    return {
        **names_of(allocation.container),
        "claims": list(allocation.claims),
        "resource": allocation.resource,
        "units": len(allocation.ids),
        "card_units": card_units,
        "orphaned": allocation.orphaned is not None,
        "allocated_bytes": allocation.allocated_bytes,
        "used_bytes": usage.used if usage is not None else None,
        "utilization_percent": utilization.in_percent(usage.utilization if usage is not None else None),
        "overuse": usage is not None and usage.over_since is not None,
        "pids": list(usage.pids) if usage is not None else [],
    }


def names_of(container: Container) -> dict[str, Any]:
    """Return what a container is called by, as keys of the document and as labels."""
    return {"namespace": container.namespace, "pod": container.pod, "container": container.name}


def units(tracker: InventoryTracker, entry: Resource, member: PoolMember) -> int:
    """Return as how many devices of the entry's main resource a card is advertised."""
    match tracker.sharings.get(entry.resource):
        case MemorySharing() as sharing:
            return sharing.advertised(member)
        case MigInstances() as sharing:
            return sharing.units(member)
        case None:
            return 0
        case _:
            return getattr(entry, "replicas", 1)


def _resources(tracker: InventoryTracker, entry: Resource) -> Sequence[dict[str, Any]]:
    """Describe the resources of an entry; of NVIDIA's names for MIG profiles, those of which there is something."""
    found = [_resource(tracker, entry, name) for name in resource_names(entry)]
    if not isinstance(entry, Mig) or entry.strategy != "mixed" or entry.profiles:
        return found
    return [one for one in found if one["devices"] or one["allocated"]] or found[:1]


def _resource(tracker: InventoryTracker, entry: Resource, name: str) -> dict[str, Any]:
    inventory, sharing = tracker.inventory, tracker.sharings.get(entry.resource)
    devices, reason = [], ""
    try:
        devices = list(inventory.devices(entry, ResourceName(name)))
    except NotFound as error:
        reason = error.message
    pending = tracker.allocations.pending_of(name)
    allocated = allocated_ids(inventory, name) + pending
    counts = name != entry.resource and isinstance(entry, Memory)
    whole_instances = isinstance(entry, Mig) and not entry.replicas_in_words
    notes = [f"only counts the cards; ask for {entry.resource}"] if counts else []
    if counts and tracker.host.serves_claims:
        notes = ["only counts the cards, and no claim can ask for it"]
    notes += beside.missing(entry.access, tracker.paths) if not counts else []
    if withheld := 0 if counts else sum(len(one.withheld) for one in inventory.members_of(entry.resource)):
        notes.append(f"{withheld} free units are withheld: with those of another card no container could use them")
    if isinstance(sharing, MemorySharing) and not counts:
        notes += filter(None, [sharing.unlisted(inventory.pools.get(entry.resource, Pool()))])
    if isinstance(sharing, MigInstances):
        notes += sharing.unadvertised(inventory.pools.get(entry.resource, Pool()))
    return {
        "resource": name,
        "sharing": entry.sharing,
        "unit_bytes": sharing.unit if isinstance(sharing, MemorySharing) and not counts else None,
        "policy": None if counts or whole_instances else getattr(entry, "policy", None),
        "devices": len(devices),
        "healthy": sum(device.healthy for device in devices),
        "withheld": withheld,
        "allocated": None if inventory.allocations_unknown else allocated,
        "unconfirmed": pending,
        "reason": reason,
        "notes": notes,
    }


def _orphaned_resources(inventory: Inventory) -> Iterator[dict[str, Any]]:
    """Describe what is no longer advertised and still allocated."""
    kinds = {one.resource: one.orphaned for one in inventory.allocations if one.orphaned is not None}
    for name, sharing in kinds.items():
        numbers = {"devices": 0, "healthy": 0, "withheld": 0, "unconfirmed": 0, "unit_bytes": None, "policy": None}
        allocated = allocated_ids(inventory, name)
        note = "it is no longer advertised; containers keep what they were allocated"
        yield {"resource": name, "sharing": sharing, "allocated": allocated, "reason": "", "notes": [note], **numbers}
