"""Slices, devices and claims for tests of the stand-ins of Dynamic Resource Allocation."""

from typing import Any, Final

DRIVER = "acme.example.com"
NODE = "node-1"


def card(name: str, size: str = "8Gi", **more: Any) -> dict[str, Any]:
    """A card that several claims may have parts of, in steps of 1Gi."""
    policy = {"default": size, "validRange": {"min": "1Gi", "step": "1Gi"}}
    memory = {"value": size, "requestPolicy": policy}
    return {"name": name, "allowMultipleAllocations": True, "capacity": {"memory": memory}, **more}


def slice_of(*devices: dict[str, Any], name: str = "acme-0", **more: Any) -> dict[str, Any]:
    pool = {"name": "pool", "generation": 1, "resourceSliceCount": 1, **more.pop("pool", {})}
    spec = {"driver": DRIVER, "nodeName": NODE, "pool": pool, "devices": list(devices), **more}
    return {"metadata": {"name": name}, "spec": {key: value for key, value in spec.items() if value != []}}


def wants(name: str = "gpu", **exactly: Any) -> dict[str, Any]:
    """One request of a claim, for the class of all devices of the driver."""
    return {"name": name, "exactly": {"deviceClassName": "acme", **exactly}}


def wants_part(amount: str, name: str = "gpu", **exactly: Any) -> dict[str, Any]:
    return wants(name, capacity={"requests": {"memory": amount}}, **exactly)


COUNTERS: Final = {"counterSet": "a", "counters": {"b": {"value": "1"}}}
REFUSED: Final = [
    (slice_of(*(card(f"d{number}") for number in range(129))), "must have at most 128 items"),
    (slice_of(*(card(f"d{n}", taints=[{"key": "a", "effect": "None"}]) for n in range(65))), "at most 64 items"),
    (slice_of(card("GPU-1")), "spec.devices[0].name"),
    (slice_of(card("a_b")), "spec.devices[0].name"),
    (slice_of(card("one"), card("one")), "Duplicate value"),
    (slice_of(card("one", attributes={"pci-bus": {"int": 1}})), "C identifier"),
    (slice_of(card("one", attributes={"a": {"string": "ä" * 33}})), "may not be more than 64 bytes"),
    (slice_of(card("one", attributes={"a": {"version": "550.54"}})), "semver"),
    (slice_of(card("one", attributes={"a": {"string": "b", "int": 1}})), "exactly one value"),
    (slice_of(card("one", attributes={f"a{number}": {"int": 1} for number in range(32)})), "must not exceed 32"),
    (slice_of(card("one", taints=[{"key": "a", "value": "xid 79", "effect": "None"}])), "a valid label"),
    (slice_of(card("one", taints=[{"key": "a", "effect": "Evict"}])), "supported values"),
    (slice_of(card("one", allowMultipleAllocations=False)), "allowMultipleAllocations must be true"),
    (slice_of(card("one", size="1536Mi")), "must be the minimum plus a multiple of the step"),
    (slice_of(card("one"), pool={"resourceSliceCount": 0}), "must be greater than zero"),
    (slice_of(card("one"), pool={"name": "Node"}), "spec.pool.name"),
    (slice_of(card("one"), driver="example.com/gpu"), "spec.driver"),
    (slice_of(card("one"), allNodes=True), "exactly one of"),
    (slice_of(card("one", consumesCounters=[COUNTERS] * 3)), "at most 2 items"),
    (slice_of(card("one", consumesCounters=[{**COUNTERS, "counterSet": "a_b"}])), "consumesCounters[0].counterSet"),
    (slice_of(card("one", consumesCounters=[{**COUNTERS, "counters": {}}])), "consumesCounters[0].counters"),
    (
        slice_of(sharedCounters=[{"name": "a", "counters": {f"c{n}": {"value": "1"} for n in range(33)}}]),
        "must have between 1 and 32 items",
    ),
    (slice_of(card("one"), sharedCounters=[{"name": "a", "counters": {"b": {"value": "1"}}}]), "only one of"),
]
"""Slices that no server takes, and what its message says."""
