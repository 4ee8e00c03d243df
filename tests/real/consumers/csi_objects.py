"""The objects with which a cluster knows CSI drivers and their volumes, as an API server in memory has them."""

import json
from functools import partial
from typing import Any

from tests.real.consumers.api_server import ApiServer
from tests.real.consumers.lab import Lab

from nodeplug.testing.acted_api.store import Where


def announce(lab: Lab, name: str) -> None:
    """Make the CSIDriver object that `nodeplug csi manifests` prints, and wait until kubelet has the driver."""
    assert lab.api is not None
    printed = json.loads(lab.daemon.run("csi manifests", "--json", "--driver", name).stdout)["items"]
    (made,) = [one for one in printed if one["kind"] == "CSIDriver"]
    # What an API server fills in, and kubelet reads without looking.
    made["spec"]["seLinuxMount"] = False
    where = Where("storage.k8s.io/v1", "csidrivers", "", name)
    lab.api.store.put(where, made)
    # A kubelet that starts on a node that it has not registered yet loses one of two drivers: it deletes the CSINode
    # that has no owner, and with it what it wrote for the other (nodeinfomanager.go). The daemon sees that.
    lab.kubelet.wait_for(f"{name} in its CSINode", partial(has_driver, lab, name))


def has_driver(lab: Lab, name: str) -> bool:
    return name in drivers_of(lab)


def csi_node(lab: Lab) -> tuple[Where, dict[str, Any]]:
    """Return where the CSINode is, and what it is; nothing if there is none."""
    assert lab.api is not None
    where = Where("storage.k8s.io/v1", "csinodes", "", lab.private.name)
    return where, lab.api.store.get(where) or {}


def drivers_of(lab: Lab) -> set[str]:
    """The drivers that kubelet tells the scheduler of."""
    found = csi_node(lab)[1]
    return {one["name"] for one in (found.get("spec") or {}).get("drivers") or ()}


def claim(
    api: ApiServer,
    driver: str,
    name: str,
    handle: str,
    attributes: dict[str, str],
    *,
    mode: str = "Filesystem",
    size: str = "64Mi",
    **more: object,
) -> dict[str, Any]:
    """Make a volume, with more in its source, and a claim that has it; return the source for a pod."""
    source = {"driver": driver, "volumeHandle": handle, "volumeAttributes": attributes, **more}
    shared = {"accessModes": ["ReadWriteOnce"], "volumeMode": mode}
    volume = api.put("persistentvolumeclaims", {"metadata": {"name": name, "namespace": "default"}, "spec": {}})
    reference = {"name": name, "namespace": "default", "uid": volume["metadata"]["uid"]}
    capacity = {"storage": size}
    spec = {**shared, "csi": source, "capacity": capacity, "claimRef": reference}
    api.put("persistentvolumes", {"metadata": {"name": f"pv-{name}"}, "spec": spec, "status": {"phase": "Bound"}})
    wanted = {**shared, "volumeName": f"pv-{name}", "resources": {"requests": capacity}}
    status = {"phase": "Bound", "capacity": capacity, "accessModes": ["ReadWriteOnce"]}
    api.put("persistentvolumeclaims", {"metadata": volume["metadata"], "spec": wanted, "status": status})
    return {"persistentVolumeClaim": {"claimName": name}}


def enlarge(api: ApiServer, name: str, size: str) -> None:
    """Raise what a volume and its claim have, as a resizer does that leaves the filesystem to kubelet."""
    volume, wanted = api.get("persistentvolumes", f"pv-{name}", ""), api.get("persistentvolumeclaims", name)
    assert volume is not None
    assert wanted is not None
    volume["spec"]["capacity"] = wanted["spec"]["resources"]["requests"] = {"storage": size}
    wanted["status"]["allocatedResources"] = {"storage": size}
    wanted["status"]["allocatedResourceStatuses"] = {"storage": "NodeResizePending"}  # kubelet 1.20 does not read it
    wanted["status"]["conditions"] = [{"type": "FileSystemResizePending", "status": "True"}]
    api.put("persistentvolumes", volume)
    api.put("persistentvolumeclaims", wanted)


def capacity_of(api: ApiServer, name: str) -> str:
    """What the status of a claim says that it has: kubelet's word once the filesystem has grown."""
    found = api.get("persistentvolumeclaims", name)
    assert found is not None
    return str(found["status"]["capacity"]["storage"])
