"""Fields that an API server without a feature gate drops, and says nothing.

Owns: which fields belong to which gate.
Refuses: which versions have which gates: whoever makes a server says what it lacks.

Source: kubernetes 1.36, pkg/registry/resource/{resourceslice,resourceclaim}/strategy.go, dropDisabledFields.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

SHARING: Final = "DRAConsumableCapacity"
TAINTS: Final = "DRADeviceTaints"
COUNTERS: Final = "DRAPartitionableDevices"
ADMIN: Final = "DRAAdminAccess"
GATES: Final = frozenset({SHARING, TAINTS, COUNTERS, ADMIN})

_OF_DEVICES: Final = {
    SHARING: ("allowMultipleAllocations",),
    TAINTS: ("taints",),
    COUNTERS: ("consumesCounters", "nodeName", "nodeSelector", "allNodes"),
}
_OF_REQUESTS: Final = {SHARING: ("capacity",), TAINTS: ("tolerations",), ADMIN: ("adminAccess",)}
_OF_RESULTS: Final = {
    SHARING: ("shareID", "consumedCapacity"),
    TAINTS: ("tolerations",),
    ADMIN: ("adminAccess",),
}


def without_gates(found: Mapping[str, Any], lacks: Collection[str]) -> dict[str, Any]:
    """Return a copy of a slice or a claim without the fields of gates that the server lacks."""
    left: dict[str, Any] = json.loads(json.dumps(found))
    spec = left.get("spec") or {}
    if left.get("kind") == "ResourceSlice":
        if COUNTERS in lacks:
            _drop(spec, ("sharedCounters", "perDeviceNodeSelection"))
        for device in spec.get("devices") or ():
            _drop(device, (name for gate in lacks for name in _OF_DEVICES.get(gate, ())))
            if SHARING in lacks:
                for capacity in (device.get("capacity") or {}).values():
                    _drop(capacity, ("requestPolicy",))
    elif left.get("kind") == "ResourceClaim":
        for request in requests_of(left):
            _drop(request, (name for gate in lacks for name in _OF_REQUESTS.get(gate, ())))
        for result in results_of(left):
            _drop(result, (name for gate in lacks for name in _OF_RESULTS.get(gate, ())))
    return left


def requests_of(claim: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what a claim asks for exactly, and each of what it would take instead."""
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        yield from [request["exactly"]] if "exactly" in request else request.get("firstAvailable") or ()


def results_of(claim: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield each device that is allocated to a claim."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    yield from (allocation.get("devices") or {}).get("results") or ()


def _drop(found: dict[str, Any], names: Any) -> None:
    for name in names:
        found.pop(name, None)
