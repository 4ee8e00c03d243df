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
from nodeplug_gpu.config import GpuConfig, Memory, names_of
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.overuse import OveruseWatch, Usage
from nodeplug_gpu.pool import Entry, Offer, Stock
from nodeplug_gpu.sharing import Sharing
from nodeplug_gpu.sharing.memory import MemorySharing
from nodeplug_gpu.sharing.mig import MigInstances
from nodeplug_gpu.tracker import Shop

STATES = ("healthy", "suspect", "unhealthy", "recovering")


def document(config: GpuConfig, shop: Shop, overuse: OveruseWatch) -> Mapping[str, Any]:
    """Describe the driver, every card with who holds what of it, every resource, and what is not sold.

    What it holds is described in docs/gpu.md; keys are only ever added.
    """
    inventory = shop.inventory
    sold = {offer.card.uuid for stock in inventory.stocks.values() for offer in stock.offers}
    return {
        "node": shop.host.node_name,
        "driver": {
            "name": config.driver,
            "state": inventory.view.state,
            "reason": inventory.view.reason,
            "version": inventory.view.driver_version,
        },
        "fault": inventory.fault,
        "holders_unknown": inventory.unknown,
        "cards": [
            _card(shop, overuse, entry, offer)
            for entry in config.resources
            for offer in inventory.stocks_of(entry.resource)
        ],
        "unsold": [
            {"uuid": card.uuid, "index": card.index, "model": card.model, "reason": _unsold(inventory, card.uuid)}
            for card in inventory.view.cards
            if card.uuid not in sold
        ],
        "left_out": list(inventory.view.left_out),
        "resources": [
            *(_resource(shop, entry, name) for entry in config.resources for name in names_of(entry)),
            *_former_resources(inventory),
        ],
    }


def _unsold(inventory: Inventory, uuid: Uuid) -> str:
    whys = (inventory.faults, inventory.rivals, inventory.waiting)
    return next((why[uuid] for why in whys if uuid in why), "") or "no entry of `resources` chooses it"


def _card(shop: Shop, overuse: OveruseWatch, entry: Entry, offer: Offer) -> dict[str, Any]:
    inventory, card = shop.inventory, offer.card
    condition = inventory.conditions[card.uuid]
    vitals = inventory.view.vitals.get(card.uuid)
    uses = _uses(inventory, entry, card.uuid)
    sharing = shop.sharings.get(entry.resource)
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model,
        "pci": card.pci,
        "numa_node": card.numa_node,
        "memory_bytes": card.memory,
        "used_bytes": vitals.used if vitals is not None else None,
        "nobodys_bytes": overuse.nobodys.get(card.uuid, 0),
        "state": condition.state,
        "offered": offer.healthy,
        "reason": offer.reason or condition.reason,
        "state_seconds": round(max(time.monotonic() - condition.since, 0.0), 1),
        "resource": entry.resource,
        "sharing": entry.sharing,
        "unit_bytes": sharing.unit if isinstance(sharing, MemorySharing) else None,
        "units": units(shop, entry, offer),
        "used_units": _used(shop, entry, offer),
        "unconfirmed_units": shop.grants.of_card(card.uuid, names_of(entry)),
        "instances": [_instance(sharing, inventory.stocks[entry.resource], one, uses) for one in card.instances],
        "containers": [
            _use(use, overuse.usage.get((use.who, card.uuid)), _in_units(shop, entry, offer, use))
            for use in sorted(uses, key=lambda use: use.who)
        ],
        "strangers": [
            {"namespace": who.namespace, "pod": who.pod, "container": who.container, "used_bytes": one.used}
            | {"pids": list(one.pids)}
            for (who, uuid), one in sorted(overuse.usage.items(), key=lambda item: item[0])
            if uuid == card.uuid and one.stranger
        ],
    }


def _uses(inventory: Inventory, entry: Entry, uuid: Uuid) -> Sequence[ledger.Use]:
    """Return who holds a card by a name of an entry, or by one that is offered no more."""
    names = names_of(entry)
    return [use for use in inventory.uses if use.card == uuid and (use.resource in names or use.former is not None)]


def _used(shop: Shop, entry: Entry, offer: Offer) -> int | None:
    """Return how many units of a card are used, those included that were granted a moment ago; None: nobody knows."""
    if shop.inventory.unknown:
        return None
    held = sum(_in_units(shop, entry, offer, use) for use in _uses(shop.inventory, entry, offer.card.uuid))
    return min(held, units(shop, entry, offer)) + shop.grants.of_card(offer.card.uuid, names_of(entry))


def _in_units(shop: Shop, entry: Entry, offer: Offer, use: ledger.Use) -> int:
    """Return what a use is in the units of now: a card that is held in another way is used as a whole."""
    sharing = shop.sharings.get(entry.resource)
    if use.former is None:
        return len(use.ids)
    if isinstance(sharing, MemorySharing) and use.promised is not None:
        return -(-use.promised // sharing.unit)
    return len(use.ids) if use.former == entry.sharing else units(shop, entry, offer)


def _instance(sharing: Sharing | None, stock: Stock, one: MigInstance, uses: Sequence[ledger.Use]) -> dict[str, Any]:
    holders = [use.who for use in uses if DeviceId(one.uuid) in use.ids]
    return {
        "uuid": one.uuid,
        "profile": one.profile,
        "memory_bytes": one.memory,
        "resource": sharing.seller(one.profile, stock) if isinstance(sharing, MigInstances) else None,
        "containers": [f"{who.namespace}/{who.pod}/{who.container}" for who in holders],
    }


def _use(use: ledger.Use, usage: Usage | None, card_units: int) -> dict[str, Any]:
    return {
        "namespace": use.who.namespace,
        "pod": use.who.pod,
        "container": use.who.container,
        "resource": use.resource,
        "units": len(use.ids),
        "card_units": card_units,
        "former": use.former is not None,
        "promised_bytes": use.promised,
        "used_bytes": usage.used if usage is not None else None,
        "over": usage is not None and usage.over_since is not None,
        "pids": list(usage.pids) if usage is not None else [],
    }


def units(shop: Shop, entry: Entry, offer: Offer) -> int:
    """Return how many devices of the entry's main resource a card is."""
    match shop.sharings.get(entry.resource):
        case MemorySharing() as sharing:
            return sharing.units(offer)
        case MigInstances():
            return len(offer.card.instances)
        case None:
            return 0
        case _:
            return getattr(entry, "replicas", 1)


def _resource(shop: Shop, entry: Entry, name: str) -> dict[str, Any]:
    inventory, sharing = shop.inventory, shop.sharings.get(entry.resource)
    devices, reason = [], ""
    try:
        devices = list(inventory.devices(entry, ResourceName(name)))
    except NotFound as error:
        reason = error.message
    waiting = shop.grants.of(name)
    held = sum(len(use.ids) for use in inventory.uses if use.resource == name) + waiting
    counts = name != entry.resource and isinstance(entry, Memory)
    notes = [f"only counts the cards; ask for {entry.resource}"] if counts else []
    if isinstance(sharing, MigInstances):
        notes += sharing.unsold(inventory.stocks.get(entry.resource, Stock()))
    return {
        "resource": name,
        "sharing": entry.sharing,
        "unit_bytes": sharing.unit if isinstance(sharing, MemorySharing) and not counts else None,
        "policy": None if counts else getattr(entry, "policy", None),
        "devices": len(devices),
        "healthy": sum(device.healthy for device in devices),
        "used": None if inventory.unknown else held,
        "unconfirmed": waiting,
        "reason": reason,
        "notes": notes,
    }


def _former_resources(inventory: Inventory) -> Iterator[dict[str, Any]]:
    """Describe what is offered no more and still held."""
    kinds = {use.resource: use.former for use in inventory.uses if use.former is not None}
    for name, sharing in kinds.items():
        numbers = {"devices": 0, "healthy": 0, "unconfirmed": 0, "unit_bytes": None, "policy": None}
        held = sum(len(use.ids) for use in inventory.uses if use.resource == name)
        note = "it is offered no more; containers still hold what they got"
        yield {"resource": name, "sharing": sharing, "used": held, "reason": "", "notes": [note], **numbers}


# --- Prometheus -----------------------------------------------------------------------------------------------------


def metrics(config: GpuConfig, shop: Shop, overuse: OveruseWatch) -> Sequence[Metric]:
    """Measure cards and containers. Containers are labelled by name: as many series as containers with cards."""
    return [metric for metric in (*_metrics(config, shop), *_usage(overuse)) if metric.samples]


def _metrics(config: GpuConfig, shop: Shop) -> Iterator[Metric]:
    inventory = shop.inventory
    offers = {offer.card.uuid: offer for stock in inventory.stocks.values() for offer in stock.offers}
    states = [
        Sample(float(inventory.conditions[uuid].state == state), {"card": uuid, "state": state})
        for uuid in offers
        for state in STATES
    ]
    yield Metric("gpu_state", "1 for the state that a card is in.", states)
    offered = [
        Sample(float(offer.healthy), {"card": offer.card.uuid, "resource": name})
        for name, stock in inventory.stocks.items()
        for offer in stock.offers
    ]
    yield Metric("gpu_offered", "1 while containers may get a card.", offered)
    memory = [Sample(float(offer.card.memory), {"card": uuid}) for uuid, offer in offers.items()]
    yield Metric("gpu_memory_bytes", "Memory of a card.", memory)
    used = [(uuid, vitals.used) for uuid, vitals in inventory.view.vitals.items() if vitals.used is not None]
    yield Metric(
        "gpu_memory_used_bytes", "Memory in use on a card.", [Sample(float(n), {"card": uuid}) for uuid, n in used]
    )
    yield Metric("gpu_units", "Units that a card is sold in.", _units(config, shop))
    held = Counter[str]()
    for entry in config.resources:
        for offer in inventory.stocks_of(entry.resource):
            held[offer.card.uuid] = max(held[offer.card.uuid], _used(shop, entry, offer) or 0)
    yield Metric(
        "gpu_units_used",
        "Units of a card that containers hold; no sample while nobody knows.",
        [] if inventory.unknown else [Sample(float(held[uuid]), {"card": uuid}) for uuid in offers],
    )
    yield Metric("gpu_promised_bytes", "Memory of a card that a container may use.", _promised(inventory))
    running = float(inventory.view.state == "running")
    yield Metric("gpu_driver_running", "1 while the driver answers.", [Sample(running, {"driver": config.driver})])


def _units(config: GpuConfig, shop: Shop) -> list[Sample]:
    return [
        Sample(float(units(shop, entry, offer)), {"card": offer.card.uuid, "resource": entry.resource})
        for entry in config.resources
        for offer in shop.inventory.stocks_of(entry.resource)
    ]


def _promised(inventory: Inventory) -> list[Sample]:
    return [
        Sample(float(use.promised), _labels(use.who, use.card)) for use in inventory.uses if use.promised is not None
    ]


def _usage(overuse: OveruseWatch) -> Iterator[Metric]:
    used = [Sample(float(one.used), _labels(*place)) for place, one in overuse.usage.items()]
    yield Metric("gpu_container_used_bytes", "Memory of a card that a container really uses.", used)
    over = [
        Sample(float(one.over_since is not None), _labels(*place))
        for place, one in overuse.usage.items()
        if one.promised is not None or one.stranger
    ]
    yield Metric("gpu_container_over_promise", "1 while a container uses more memory than was promised.", over)


def _labels(who: ledger.Container, card: str) -> dict[str, str]:
    return {"card": card, "namespace": who.namespace, "pod": who.pod, "container": who.container}
