"""Claims of devices, and pods that use them, as a test writes them into a real API server."""

from collections.abc import Mapping
from typing import Any

from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.kubelet_process import pod

API = "/apis/resource.k8s.io/v1"
CLAIMS = f"{API}/namespaces/default/resourceclaims"
SLICES = f"{API}/resourceslices"
CLASSES = f"{API}/deviceclasses"
Object = dict[str, Any]


def put_class(plane: ControlPlane, name: str, driver: str) -> None:
    """Create a class of all devices of a driver."""
    selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    plane.call("POST", CLASSES, {**made, "spec": {"selectors": selectors}})


def put_claim(plane: ControlPlane, name: str, of: str, amounts: Mapping[str, str], count: int = 1) -> None:
    """Create a claim of devices of a class; without amounts of whole ones."""
    exactly: Object = {"deviceClassName": of, "count": count}
    if amounts:
        exactly["capacity"] = {"requests": dict(amounts)}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    plane.call("POST", CLAIMS, {**made, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}})


def put_observer(plane: ControlPlane, name: str, of: str) -> None:
    """Create a claim that sees a device of a class, whoever has it; its namespace has to allow that."""
    exactly = {"deviceClassName": of, "count": 1, "adminAccess": True}
    made = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    plane.call("POST", CLAIMS, {**made, "spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}})


def put_pod(plane: ControlPlane, name: str, claim: str, script: str = "") -> None:
    """Create a pod whose container uses a claim."""
    made = pod(name, script)
    made["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": claim}]
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
    plane.schedule(made)


def claim(plane: ControlPlane, name: str) -> Object:
    """Return a claim."""
    return dict(plane.call("GET", f"{CLAIMS}/{name}"))


def slices(plane: ControlPlane) -> list[Object]:
    """Return all slices."""
    return list(plane.call("GET", SLICES)["items"])


def devices(plane: ControlPlane) -> dict[str, Object]:
    """Return every published device, by name."""
    return {one["name"]: one for found in slices(plane) for one in found["spec"].get("devices") or ()}


def phase(plane: ControlPlane, name: str) -> str:
    """Return the phase of a pod."""
    return str(plane.pod(name)["status"]["phase"])


def events(plane: ControlPlane, about: str) -> list[str]:
    """Return what events say of an object."""
    return [f"{one['reason']}: {one['note']}" for one in plane.events(about)]
