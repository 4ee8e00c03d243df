"""What the API server knows of this node's volume drivers, and what is wrong with it.

Owns: the questions, and the comparison with what the claims say; every problem comes with what to do about it.
Refuses: to change anything. What may not be read is told as unknown, and the rest is told all the same.
"""

from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.csi.objects import FIXED, Driver
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.resources import (
    CSI_DRIVERS,
    CSI_NODES,
    CSI_STORAGE_CAPACITIES,
    NODES,
    PERSISTENT_VOLUMES,
    STORAGE_CLASSES,
    Object,
)
from nodeplug.kubeapi.selectors import on_node, selects

_SETS: Final = frozenset({"volumeLifecycleModes"})
"""Lists whose order means nothing."""


@dataclass(slots=True)
class Cluster:
    """What the API server has; a list that could not be read is empty, and `unknown` says why.

    Attributes:
        node: the Node object.
        csi_node: what kubelet has told of the node's drivers.
        csi_drivers: all of them.
        classes: StorageClasses.
        capacities: CSIStorageCapacity objects of all namespaces.
        volumes: PersistentVolumes.
        unknown: why something is not known, by its plural name.
    """

    node: Object = field(default_factory=dict)
    csi_node: Object = field(default_factory=dict)
    csi_drivers: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    capacities: Sequence[Object] = ()
    volumes: Sequence[Object] = ()
    unknown: dict[str, str] = field(default_factory=dict)


async def look(client: Client, node: str) -> Cluster:
    """Ask for all that concerns a node.

    Raises:
        PluginError: nothing at all can be had.
    """
    seen = Cluster()

    async def one(what: str, asked: Awaitable[Object]) -> Object:
        try:
            return await asked
        except NotFound:
            return {}
        except PluginError as error:
            seen.unknown[what] = str(error)
            return {}

    async def every(what: str, asked: Awaitable[Iterable[Object]]) -> Sequence[Object]:
        try:
            return tuple(await asked)
        except PluginError as error:
            seen.unknown[what] = str(error)
            return ()

    seen.csi_drivers = tuple(await client.list(CSI_DRIVERS))  # whoever may not read these may read nothing
    seen.node = await one("nodes", client.get(NODES, node))
    seen.csi_node = await one("csinodes", client.get(CSI_NODES, node))
    seen.classes = await every("storageclasses", client.list(STORAGE_CLASSES))
    seen.capacities = await every("csistoragecapacities", client.list(CSI_STORAGE_CAPACITIES))
    seen.volumes = await every("persistentvolumes", client.list(PERSISTENT_VOLUMES))
    return seen


def report(driver: Driver, seen: Cluster, served: Mapping[str, Any] | None) -> dict[str, Any]:
    """Describe one driver.

    Args:
        driver: what its claim says.
        seen: what the cluster has.
        served: the daemon's row of it; None if no daemon was asked.
    """
    described: dict[str, Any] = {
        "driver": driver.name,
        "claim": driver.claim.name,
        "registered": None if served is None else bool(served.get("registered")),
        "csi_driver": _csi_driver(driver, seen),
        "csi_node": _csi_node(driver, seen),
        "classes": [_class(one) for one in seen.classes if one.get("provisioner") == driver.name],
    }
    described["capacities"] = [_capacity(one) for one in _here(described["classes"], seen)]
    described["volumes"] = [_volume(one) for one in _volumes(driver, seen)]
    described["problems"] = [*_problems(driver, described, seen, served)]
    return described


def _csi_driver(driver: Driver, seen: Cluster) -> dict[str, Any] | None:
    found = next((one for one in seen.csi_drivers if one["metadata"]["name"] == driver.name), None)
    if found is None:
        return None
    has = found.get("spec") or {}
    pairs = ((name, wanted, has.get(name)) for name, wanted in driver.spec.items())
    return {
        "differences": [
            {"field": name, "wanted": wanted, "found": given, "fixed": name in FIXED}
            for name, wanted, given in pairs
            if not _same(name, wanted, given)
        ]
    }


def _same(name: str, wanted: Any, given: Any) -> bool:
    if name in _SETS:
        return {*wanted} == {*(given or ())}
    if name == "tokenRequests":
        return {one["audience"] for one in wanted} <= {one.get("audience") for one in given or ()}
    return bool(wanted == given) or (wanted is False and given is None)


def _csi_node(driver: Driver, seen: Cluster) -> dict[str, Any] | None:
    registered = (seen.csi_node.get("spec") or {}).get("drivers") or ()
    found = next((one for one in registered if one["name"] == driver.name), None)
    if found is None:
        return None
    return {
        "node_id": found.get("nodeID"),
        "topology_keys": found.get("topologyKeys") or [],
        "max_volumes": (found.get("allocatable") or {}).get("count"),
    }


def _class(found: Object) -> dict[str, Any]:
    return {
        "name": found["metadata"]["name"],
        "binding": found.get("volumeBindingMode", "Immediate"),
        "expansion": bool(found.get("allowVolumeExpansion")),
    }


def _here(classes: Iterable[Mapping[str, Any]], seen: Cluster) -> Iterator[Object]:
    names = {one["name"] for one in classes}
    labels = (seen.node.get("metadata") or {}).get("labels") or {}
    for one in seen.capacities:
        topology = one.get("nodeTopology")
        if one.get("storageClassName") in names and topology is not None and selects(topology, labels):
            yield one


def _capacity(found: Object) -> dict[str, Any]:
    return {
        "class": found["storageClassName"],
        "capacity": found.get("capacity"),
        "largest": found.get("maximumVolumeSize"),
    }


def _volumes(driver: Driver, seen: Cluster) -> Iterator[Object]:
    for one in seen.volumes:
        spec = one.get("spec") or {}
        if (spec.get("csi") or {}).get("driver") == driver.name and on_node(spec.get("nodeAffinity"), seen.node):
            yield one


def _volume(found: Object) -> dict[str, Any]:
    spec, status = found["spec"], found.get("status") or {}
    claim = spec.get("claimRef") or {}
    return {
        "name": found["metadata"]["name"],
        "phase": status.get("phase", "Pending"),
        "claim": f"{claim['namespace']}/{claim['name']}" if claim else "",
        "capacity": (spec.get("capacity") or {}).get("storage"),
        "handle": spec["csi"]["volumeHandle"],
        "anywhere": "nodeAffinity" not in spec,
        "message": status.get("message", ""),
    }


def _problems(
    driver: Driver, described: Mapping[str, Any], seen: Cluster, served: Mapping[str, Any] | None
) -> Iterator[str]:
    apply = f"`nodeplug csi manifests --driver {driver.name} | kubectl apply -f -`"
    if described["registered"] is False:
        why = (served or {}).get("problem") or "kubelet has not asked for it yet"
        yield f"it is not registered with kubelet: {why}"
    yield from _object_problems(driver, described["csi_driver"], apply)
    if "csinodes" not in seen.unknown:
        yield from _node_problems(driver, described["csi_node"], seen)
    if driver.provisions and not described["classes"] and "storageclasses" not in seen.unknown:
        yield f"it creates volumes, and no StorageClass names it as provisioner: {apply}"
    for one in described["classes"]:
        if driver.claim.node_local and one["binding"] == "Immediate":
            yield (
                f"StorageClass {one['name']} binds at once, on whatever node comes first, and its volumes are on one "
                "node: make another class with volumeBindingMode: WaitForFirstConsumer"
            )
    object_is_there = described["csi_driver"] is not None and driver.spec["storageCapacity"] and described["classes"]
    if object_is_there and not described["capacities"] and "csistoragecapacities" not in seen.unknown:
        yield (
            "no CSIStorageCapacity tells of room on this node, so that no pod with a new claim is placed here: who "
            "creates volumes does not run, or may not write them"
        )
    for volume in described["volumes"]:
        if volume["phase"] == "Failed":
            yield f"PersistentVolume {volume['name']} has failed: {volume['message'] or 'see kubectl describe pv'}"


def _object_problems(driver: Driver, found: Mapping[str, Any] | None, apply: str) -> Iterator[str]:
    if found is None:
        yield f"the cluster has no CSIDriver {driver.name}, so that its volumes are never mounted: {apply}"
        return
    for one in found["differences"]:
        said = (
            f"CSIDriver {driver.name}: {one['field']} is {_shown(one['found'])} and should be {_shown(one['wanted'])}"
        )
        if one["fixed"]:
            yield (
                f"{said}, which can never be changed: at a moment when no pod with its volumes starts, "
                f"`kubectl delete csidriver {driver.name}`, then {apply}"
            )
        else:
            yield f"{said}: {apply}"


def _node_problems(driver: Driver, found: Mapping[str, Any] | None, seen: Cluster) -> Iterator[str]:
    if not seen.csi_node and not seen.node and "nodes" not in seen.unknown:
        yield "the cluster has no node of this name: look at node_name under [supervisor]"
    elif found is None:
        yield "kubelet has not told the cluster of it (CSINode), so that no pod with its volumes is placed here"
    elif driver.claim.node_local and not found["topology_keys"]:
        yield (
            "its volumes are on one node, and the cluster knows no topology key for it: kubelet registered an earlier "
            "version of the driver; restart kubelet, or remove its registration socket, which nodeplug makes anew"
        )


def _shown(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "not set"}[value]
    return f"[{', '.join(map(_shown, value))}]" if isinstance(value, list) else str(value)
