"""What the plugin measures, for Prometheus.

Owns: names, labels and samples of cards, instances and containers.
Refuses: to look anywhere but into the inventory and what the watch for overuse knows; one scrape asks no driver.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nodeplug import Metric, Sample
from nodeplug_gpu import utilization
from nodeplug_gpu.allocations import each_once
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.holders import Container
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.report import allocated_units, instance_entry, names_of, units
from nodeplug_gpu.sizes import unknown
from nodeplug_gpu.tracker import InventoryTracker

STATES = ("healthy", "suspect", "unhealthy", "recovering")


def metrics(config: GpuConfig, tracker: InventoryTracker, overuse: OveruseWatch) -> Sequence[Metric]:
    """Measure cards and containers. Containers are labelled by name: as many series as containers with cards."""
    telemetry = tracker.inventory.snapshot.telemetry
    busy = utilization.metrics(telemetry, {key: one.utilization for key, one in overuse.usage.items()})
    return [metric for metric in (*_metrics(config, tracker), *_usage(overuse), *busy) if metric.samples]


def _metrics(config: GpuConfig, tracker: InventoryTracker) -> Iterator[Metric]:
    inventory = tracker.inventory
    members = {member.card.uuid: member for pool in inventory.pools.values() for member in pool.members}
    states = [
        Sample(float(inventory.conditions[uuid].state == state), {"card": uuid, "state": state})
        for uuid in members
        for state in STATES
    ]
    yield Metric("gpu_state", "1 for the state that a card is in.", states)
    allocatable = [
        Sample(float(member.healthy), {"card": member.card.uuid, "resource": name})
        for name, pool in inventory.pools.items()
        for member in pool.members
    ]
    yield Metric("gpu_allocatable", "1 while a card can be allocated.", allocatable)
    yield from _instance_health(config, tracker)
    memory = [Sample(float(one.card.memory), {"card": uuid}) for uuid, one in members.items() if one.card.memory]
    yield Metric("gpu_memory_bytes", "Total memory of a card.", memory)
    used = [(uuid, one.used) for uuid, one in inventory.snapshot.telemetry.items() if one.used is not None]
    yield Metric(
        "gpu_memory_used_bytes", "Memory in use on a card.", [Sample(float(n), {"card": uuid}) for uuid, n in used]
    )
    yield Metric("gpu_units", "Units that a card is advertised in.", _units(config, tracker))
    allocated = Counter[str]()
    for entry in config.resources:
        for member in inventory.members_of(entry.resource):
            uuid = member.card.uuid
            allocated[uuid] = max(allocated[uuid], allocated_units(tracker, entry, member) or 0)
    yield Metric(
        "gpu_units_allocated",
        "Allocated units of a card; no sample while that is not known.",
        [] if inventory.allocations_unknown else [Sample(float(allocated[uuid]), {"card": uuid}) for uuid in members],
    )
    yield Metric(
        "gpu_container_allocated_bytes",
        "Memory of a card allocated to a container; one claim's is that of each container that uses it.",
        _container_bytes(inventory),
    )
    yield Metric(
        "gpu_memory_allocated_bytes",
        "Memory of a card allocated to containers, each byte once.",
        _card_bytes(inventory),
    )
    running = float(inventory.snapshot.state == "running")
    yield Metric("gpu_driver_running", "1 while the driver answers.", [Sample(running, {"driver": config.driver})])


def _instance_health(config: GpuConfig, tracker: InventoryTracker) -> Iterator[Metric]:
    """Yield the health of MIG instances; whether it can be allocated only of those that are advertised."""
    inventory = tracker.inventory
    parts = [
        (entry, member, one)
        for entry in config.resources
        for member in inventory.members_of(entry.resource)
        for one in member.card.instances
    ]
    states = [
        Sample(
            float(inventory.conditions[one.uuid].state == state),
            {"card": member.card.uuid, "instance": one.uuid, "state": state},
        )
        for _, member, one in parts
        for state in STATES
    ]
    yield Metric("gpu_instance_state", "1 for the state that a MIG instance is in.", states)
    allocatable = [
        Sample(float(not member.reason_of(one)), {"card": member.card.uuid, "instance": one.uuid, "resource": resource})
        for entry, member, one in parts
        if (resource := instance_entry(inventory, entry, member, one, ())["resource"]) is not None
    ]
    yield Metric("gpu_instance_allocatable", "1 while a MIG instance can be allocated.", allocatable)


def _units(config: GpuConfig, tracker: InventoryTracker) -> list[Sample]:
    return [
        Sample(float(units(tracker, entry, member)), {"card": member.card.uuid, "resource": entry.resource})
        for entry in config.resources
        for member in tracker.inventory.members_of(entry.resource)
        if not unknown(entry, member.card)
    ]


def _container_bytes(inventory: Inventory) -> list[Sample]:
    """Return one sample for each set of labels: claims whose containers are not known have their namespace alone."""
    allocated = Counter[tuple[Container, str]]()
    for one in inventory.allocations:
        if one.allocated_bytes is not None:
            allocated[replace(one.container, claim=""), one.card] += one.allocated_bytes
    return [Sample(float(size), _labels(*key)) for key, size in allocated.items()]


def _card_bytes(inventory: Inventory) -> list[Sample]:
    allocated = Counter[str]()
    for one in each_once(inventory.allocations):
        if one.allocated_bytes is not None:
            allocated[one.card] += one.allocated_bytes
    return [Sample(float(size), {"card": card}) for card, size in allocated.items()]


def _usage(overuse: OveruseWatch) -> Iterator[Metric]:
    used = [Sample(float(one.used), _labels(*key)) for key, one in overuse.usage.items()]
    yield Metric("gpu_container_used_bytes", "Memory of a card in use by a container.", used)
    over = [
        Sample(float(one.over_since is not None), _labels(*key))
        for key, one in overuse.usage.items()
        if one.allocated_bytes is not None or one.unallocated
    ]
    yield Metric("gpu_container_overuse", "1 while a container uses more memory than it was allocated.", over)


def _labels(container: Container, card: str) -> dict[str, str]:
    return {"card": card, **names_of(container)}
