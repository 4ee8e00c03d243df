"""Slices, devices and claims for tests of the stand-ins of Dynamic Resource Allocation."""

from typing import Any

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
