"""What the plugin tells about itself: a JSON document for people's tools, and numbers for Prometheus.

Owns: the shape of both.
Refuses: rendering (the command does it).
"""

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nodeplug import DeviceId, Metric, NotFound, ResourceName, Sample
from nodeplug_gpu import ledger
from nodeplug_gpu.cards import MigInstance, Uuid
from nodeplug_gpu.config import GpuConfig, Memory, resource_names
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.overuse import OveruseWatch, Usage
from nodeplug_gpu.pool import Entry, Pool, PoolMember
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.memory import MemorySharing
from nodeplug_gpu.sharing.mig import MigInstances
from nodeplug_gpu.tracker import InventoryTracker

STATES = ("healthy", "suspect", "unhealthy", "recovering")


def document(config: GpuConfig, tracker: InventoryTracker, overuse: OveruseWatch) -> Mapping[str, Any]:
    """Describe the driver, every card with who holds what of it, every resource, and what is not sold.

    What it holds is described in docs/gpu.md; keys are only ever added.
    """
    inventory = tracker.inventory
    sold = {member.card.uuid for pool in inventory.pools.values() for member in pool.members}
    return {
        "node": tracker.host.node_name,
        "driver": {
            "name": config.driver,
            "state": inventory.snapshot.state,
            "reason": inventory.snapshot.reason,
            "version": inventory.snapshot.driver_version,
        },
        "conflict": inventory.conflict,
        "allocations_unknown": inventory.allocations_unknown,
        "cards": [
            _card(tracker, overuse, entry, member)
            for entry in config.resources
            for member in inventory.members_of(entry.resource)
        ],
        "unadvertised": [
            {"uuid": card.uuid, "index": card.index, "model": card.model, "reason": _unadvertised(inventory, card.uuid)}
            for card in inventory.snapshot.cards
            if card.uuid not in sold
        ],
        "unreadable": list(inventory.snapshot.unreadable),
        "resources": [
            *(_resource(tracker, entry, name) for entry in config.resources for name in resource_names(entry)),
            *_former_resources(inventory),
        ],
    }


def _unadvertised(inventory: Inventory, uuid: Uuid) -> str:
    whys = (inventory.entry_conflicts, inventory.section_conflicts, inventory.reserved)
    return next((why[uuid] for why in whys if uuid in why), "") or "no entry of `resources` chooses it"


def _card(tracker: InventoryTracker, overuse: OveruseWatch, entry: Entry, member: PoolMember) -> dict[str, Any]:
    inventory, card = tracker.inventory, member.card
    condition = inventory.conditions[card.uuid]
    telemetry = inventory.snapshot.telemetry.get(card.uuid)
    uses = _uses(inventory, entry, card.uuid)
    sharing = tracker.sharings.get(entry.resource)
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model,
        "pci": card.pci,
        "numa_node": card.numa_node,
        "memory_bytes": card.memory,
        "used_bytes": telemetry.used if telemetry is not None else None,
        "unattributed_bytes": overuse.unattributed.get(card.uuid, 0),
        "state": condition.state,
        "allocatable": member.healthy,
        "reason": member.reason or condition.reason,
        "state_seconds": round(max(time.monotonic() - condition.since, 0.0), 1),
        "resource": entry.resource,
        "sharing": entry.sharing,
        "unit_bytes": sharing.unit if isinstance(sharing, MemorySharing) else None,
        "units": units(tracker, entry, member),
        "allocated_units": _used(tracker, entry, member),
        "unconfirmed_units": tracker.grants.of_card(card.uuid, resource_names(entry)),
        "instances": [_instance(sharing, inventory.pools[entry.resource], one, uses) for one in card.instances],
        "containers": [
            _use(use, overuse.usage.get((use.who, card.uuid)), _in_units(tracker, entry, member, use))
            for use in sorted(uses, key=lambda use: use.who)
        ],
        "unallocated_containers": [
            {"namespace": who.namespace, "pod": who.pod, "container": who.container, "used_bytes": one.used}
            | {"pids": list(one.pids)}
            for (who, uuid), one in sorted(overuse.usage.items(), key=lambda item: item[0])
            if uuid == card.uuid and one.unallocated
        ],
    }


def _uses(inventory: Inventory, entry: Entry, uuid: Uuid) -> Sequence[ledger.Allocation]:
    """Return who holds a card by a name of an entry, or by one that is offered no more."""
    names = resource_names(entry)
    return [
        use for use in inventory.allocations if use.card == uuid and (use.resource in names or use.former is not None)
    ]


def _used(tracker: InventoryTracker, entry: Entry, member: PoolMember) -> int | None:
    """Return how many units of a card are used, those included that were granted a moment ago; None: nobody knows."""
    if tracker.inventory.allocations_unknown:
        return None
    held = sum(_in_units(tracker, entry, member, use) for use in _uses(tracker.inventory, entry, member.card.uuid))
    return min(held, units(tracker, entry, member)) + tracker.grants.of_card(member.card.uuid, resource_names(entry))


def _in_units(tracker: InventoryTracker, entry: Entry, member: PoolMember, use: ledger.Allocation) -> int:
    """Return what a use is in the units of now: a card that is held in another way is used as a whole."""
    sharing = tracker.sharings.get(entry.resource)
    if use.former is None:
        return len(use.ids)
    if isinstance(sharing, MemorySharing) and use.allocated_bytes is not None:
        return -(-use.allocated_bytes // sharing.unit)
    return len(use.ids) if use.former == entry.sharing else units(tracker, entry, member)


def _instance(
    sharing: Sharing | None, pool: Pool, one: MigInstance, uses: Sequence[ledger.Allocation]
) -> dict[str, Any]:
    holders = [use.who for use in uses if DeviceId(one.uuid) in use.ids]
    return {
        "uuid": one.uuid,
        "profile": one.profile,
        "memory_bytes": one.memory,
        "resource": sharing.resource_of(one.profile, pool) if isinstance(sharing, MigInstances) else None,
        "containers": [f"{who.namespace}/{who.pod}/{who.container}" for who in holders],
    }


def _use(use: ledger.Allocation, usage: Usage | None, card_units: int) -> dict[str, Any]:
    return {
        "namespace": use.who.namespace,
        "pod": use.who.pod,
        "container": use.who.container,
        "resource": use.resource,
        "units": len(use.ids),
        "card_units": card_units,
        "orphaned": use.former is not None,
        "allocated_bytes": use.allocated_bytes,
        "used_bytes": usage.used if usage is not None else None,
        "overuse": usage is not None and usage.over_since is not None,
        "pids": list(usage.pids) if usage is not None else [],
    }


def units(tracker: InventoryTracker, entry: Entry, member: PoolMember) -> int:
    """Return how many devices of the entry's main resource a card is."""
    match tracker.sharings.get(entry.resource):
        case MemorySharing() as sharing:
            return sharing.units(member)
        case MigInstances():
            return len(member.card.instances)
        case None:
            return 0
        case _:
            return getattr(entry, "replicas", 1)


def _resource(tracker: InventoryTracker, entry: Entry, name: str) -> dict[str, Any]:
    inventory, sharing = tracker.inventory, tracker.sharings.get(entry.resource)
    devices, reason = [], ""
    try:
        devices = list(inventory.devices(entry, ResourceName(name)))
    except NotFound as error:
        reason = error.message
    waiting = tracker.grants.of(name)
    held = sum(len(use.ids) for use in inventory.allocations if use.resource == name) + waiting
    counts = name != entry.resource and isinstance(entry, Memory)
    notes = [f"only counts the cards; ask for {entry.resource}"] if counts else []
    if isinstance(sharing, MigInstances):
        notes += sharing.unadvertised(inventory.pools.get(entry.resource, Pool()))
    return {
        "resource": name,
        "sharing": entry.sharing,
        "unit_bytes": sharing.unit if isinstance(sharing, MemorySharing) and not counts else None,
        "policy": None if counts else getattr(entry, "policy", None),
        "devices": len(devices),
        "healthy": sum(device.healthy for device in devices),
        "allocated": None if inventory.allocations_unknown else held,
        "unconfirmed": waiting,
        "reason": reason,
        "notes": notes,
    }


def _former_resources(inventory: Inventory) -> Iterator[dict[str, Any]]:
    """Describe what is offered no more and still held."""
    kinds = {use.resource: use.former for use in inventory.allocations if use.former is not None}
    for name, sharing in kinds.items():
        numbers = {"devices": 0, "healthy": 0, "unconfirmed": 0, "unit_bytes": None, "policy": None}
        held = sum(len(use.ids) for use in inventory.allocations if use.resource == name)
        note = "it is offered no more; containers still hold what they got"
        yield {"resource": name, "sharing": sharing, "allocated": held, "reason": "", "notes": [note], **numbers}


# --- Prometheus -----------------------------------------------------------------------------------------------------


def metrics(config: GpuConfig, tracker: InventoryTracker, overuse: OveruseWatch) -> Sequence[Metric]:
    """Measure cards and containers. Containers are labelled by name: as many series as containers with cards."""
    return [metric for metric in (*_metrics(config, tracker), *_usage(overuse)) if metric.samples]


def _metrics(config: GpuConfig, tracker: InventoryTracker) -> Iterator[Metric]:
    inventory = tracker.inventory
    members = {member.card.uuid: member for pool in inventory.pools.values() for member in pool.members}
    states = [
        Sample(float(inventory.conditions[uuid].state == state), {"card": uuid, "state": state})
        for uuid in members
        for state in STATES
    ]
    yield Metric("gpu_state", "1 for the state that a card is in.", states)
    offered = [
        Sample(float(member.healthy), {"card": member.card.uuid, "resource": name})
        for name, pool in inventory.pools.items()
        for member in pool.members
    ]
    yield Metric("gpu_allocatable", "1 while containers may get a card.", offered)
    memory = [Sample(float(member.card.memory), {"card": uuid}) for uuid, member in members.items()]
    yield Metric("gpu_memory_bytes", "Memory of a card.", memory)
    used = [
        (uuid, telemetry.used) for uuid, telemetry in inventory.snapshot.telemetry.items() if telemetry.used is not None
    ]
    yield Metric(
        "gpu_memory_used_bytes", "Memory in use on a card.", [Sample(float(n), {"card": uuid}) for uuid, n in used]
    )
    yield Metric("gpu_units", "Units that a card is sold in.", _units(config, tracker))
    held = Counter[str]()
    for entry in config.resources:
        for member in inventory.members_of(entry.resource):
            held[member.card.uuid] = max(held[member.card.uuid], _used(tracker, entry, member) or 0)
    yield Metric(
        "gpu_units_allocated",
        "Units of a card that containers hold; no sample while nobody knows.",
        [] if inventory.allocations_unknown else [Sample(float(held[uuid]), {"card": uuid}) for uuid in members],
    )
    yield Metric("gpu_container_allocated_bytes", "Memory of a card that a container may use.", _promised(inventory))
    running = float(inventory.snapshot.state == "running")
    yield Metric("gpu_driver_running", "1 while the driver answers.", [Sample(running, {"driver": config.driver})])


def _units(config: GpuConfig, tracker: InventoryTracker) -> list[Sample]:
    return [
        Sample(float(units(tracker, entry, member)), {"card": member.card.uuid, "resource": entry.resource})
        for entry in config.resources
        for member in tracker.inventory.members_of(entry.resource)
    ]


def _promised(inventory: Inventory) -> list[Sample]:
    return [
        Sample(float(use.allocated_bytes), _labels(use.who, use.card))
        for use in inventory.allocations
        if use.allocated_bytes is not None
    ]


def _usage(overuse: OveruseWatch) -> Iterator[Metric]:
    used = [Sample(float(one.used), _labels(*place)) for place, one in overuse.usage.items()]
    yield Metric("gpu_container_used_bytes", "Memory of a card that a container really uses.", used)
    over = [
        Sample(float(one.over_since is not None), _labels(*place))
        for place, one in overuse.usage.items()
        if one.allocated_bytes is not None or one.unallocated
    ]
    yield Metric("gpu_container_overuse", "1 while a container uses more memory than was promised.", over)


def _labels(who: ledger.Container, card: str) -> dict[str, str]:
    return {"card": card, "namespace": who.namespace, "pod": who.pod, "container": who.container}
