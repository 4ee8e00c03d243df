"""What claims, classes and volumes of the cluster say, and what a provisioner writes.

Owns: from a PersistentVolumeClaim and its StorageClass to a request of the contract, and from its answer to a
PersistentVolume; which of them are this node's; the objects that tell the scheduler how much room there is.
Refuses: I/O. An object is a plain dictionary, as JSON has it.

Source of the annotations and finalizers: kubernetes-csi/external-provisioner 6.3, pkg/controller/controller.go;
kubernetes-csi/external-resizer, pkg/controller; storage.k8s.io/v1, CSIStorageCapacity.
"""

import hashlib
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.contract.values import AccessMode, ProvisionedVolume, VolumeClaim, VolumeCreate, VolumeRoom
from nodeplug.csi.codec import KUBELETS, options_in
from nodeplug.fields import parse_quantity, write_quantity
from nodeplug.kubeapi.resources import CSI_STORAGE_CAPACITIES, PERSISTENT_VOLUMES, Object

SELECTED: Final = "volume.kubernetes.io/selected-node"
"""The annotation with which the scheduler says on which node a claim's first pod will run."""
WANTED_FROM: Final = ("volume.kubernetes.io/storage-provisioner", "volume.beta.kubernetes.io/storage-provisioner")
"""Annotations with which the control plane says which driver has to make a claim's volume."""
MADE_BY: Final = "pv.kubernetes.io/provisioned-by"
MADE_ON: Final = "provisioner.nodeplug/node"
"""The annotation of our volumes: the node whose daemon grows and deletes them, unless they are on no node."""
FINALIZER: Final = "external-provisioner.volume.kubernetes.io/finalizer"
"""Keeps the object until the volume is deleted; the standard provisioner's, so that one can follow the other."""
_MODES: Final[Mapping[str, AccessMode]] = {
    "ReadWriteOnce": "SINGLE_NODE_MULTI_WRITER",
    "ReadWriteOncePod": "SINGLE_NODE_SINGLE_WRITER",
    "ReadOnlyMany": "MULTI_NODE_READER_ONLY",
    "ReadWriteMany": "MULTI_NODE_MULTI_WRITER",
}
_FS_TYPE: Final = f"{KUBELETS}fstype"
_PUBLISH: Final = f"{KUBELETS}node-publish-secret-"
_SECRETS: Final = re.compile(rf"{re.escape(KUBELETS)}[a-z-]+-secret-(name|namespace)")
_TEMPLATE: Final = re.compile(r"\$\{([^}]*)\}")


def annotation(found: Object, name: str) -> str:
    """Return an annotation; empty without one."""
    return str((found["metadata"].get("annotations") or {}).get(name, ""))


def driver_of(claim: Object) -> str:
    """Return the driver that is to make a claim's volume, or has; empty if nobody says so."""
    return next(filter(None, (annotation(claim, name) for name in WANTED_FROM)), "")


def volume_name(claim: Object) -> str:
    """Return the name of a claim's volume, the same at every try."""
    return f"pvc-{claim['metadata']['uid']}"


# --- creating


def is_wanted(claim: Object, node: str) -> bool:
    """Whether a claim waits for a volume on this node."""
    return (
        not claim["spec"].get("volumeName")
        and not claim["metadata"].get("deletionTimestamp")
        and annotation(claim, SELECTED) == node
    )


def creation(claim: Object, storage_class: Object, volume: VolumeClaim, source: str, snapshot: str) -> VolumeCreate:
    """Return what is to be created for a claim.

    Args:
        claim: of a user.
        storage_class: its class.
        volume: what the plugin says of its driver.
        source: the volume to copy; empty for none.
        snapshot: the snapshot to restore; empty for none.

    Raises:
        InvalidRequest: the driver cannot do what the claim or the class asks for.
    """
    spec, parameters = claim["spec"], dict(storage_class.get("parameters") or {})
    modes = _modes(spec, volume)
    block = spec.get("volumeMode") == "Block"
    if block and not volume.block:
        raise InvalidRequest(f"{volume.name} has no block volumes; use volumeMode Filesystem")
    if source and not volume.clones:
        raise InvalidRequest(f"{volume.name} does not copy volumes; leave out dataSource")
    if others := sorted(key for key in parameters if _SECRETS.fullmatch(key) and not key.startswith(_PUBLISH)):
        raise InvalidRequest(
            f"the StorageClass has {', '.join(others)}: this provisioner passes no secrets; only "
            f"{_PUBLISH}name and -namespace reach the driver, when a pod gets the volume"
        )
    return VolumeCreate(
        driver=volume.name,
        name=volume_name(claim),
        size=parse_quantity(str(spec["resources"]["requests"]["storage"])),
        limit=parse_quantity(str((spec["resources"].get("limits") or {}).get("storage", 0))),
        access_modes=modes,
        block=block,
        fs_type="" if block else str(parameters.get(_FS_TYPE, "")),
        mount_flags=tuple(storage_class.get("mountOptions") or ()),
        parameters=options_in(parameters),
        source=source,
        snapshot=snapshot,
    )


def _modes(spec: Mapping[str, Any], volume: VolumeClaim) -> tuple[AccessMode, ...]:
    asked = list(spec.get("accessModes") or ())
    if unknown := [mode for mode in asked if mode not in _MODES]:
        raise InvalidRequest(f"the claim asks for access mode {unknown[0]!r}; known: {', '.join(_MODES)}")
    shared = [mode for mode in asked if _MODES[mode].startswith("MULTI_NODE")]
    if shared and volume.node_local:
        raise InvalidRequest(
            f"volumes of {volume.name} are on one node each; {shared[0]} is asked for: use ReadWriteOnce"
        )
    return tuple(_MODES[mode] for mode in asked)


def persistent_volume(
    claim: Object,
    storage_class: Object,
    made: ProvisionedVolume,
    driver: str,
    topology: Sequence[Mapping[str, str]],
    node: str,
) -> Object:
    """Return the PersistentVolume of a volume that was made for a claim."""
    spec, metadata = claim["spec"], claim["metadata"]
    reference = {"apiVersion": "v1", "kind": "PersistentVolumeClaim"}
    reference |= {key: metadata[key] for key in ("namespace", "name", "uid")}
    written: Object = {
        "capacity": {"storage": str(write_quantity(made.size))},
        "accessModes": list(spec.get("accessModes") or ()),
        "volumeMode": spec.get("volumeMode") or "Filesystem",
        "persistentVolumeReclaimPolicy": storage_class.get("reclaimPolicy") or "Delete",
        "storageClassName": storage_class["metadata"]["name"],
        "claimRef": reference,
        "csi": _csi(claim, dict(storage_class.get("parameters") or {}), made, driver),
    }
    if flags := storage_class.get("mountOptions"):
        written["mountOptions"] = list(flags)
    if topology:
        written["nodeAffinity"] = {"required": {"nodeSelectorTerms": [_term(one) for one in topology]}}
    return {
        "apiVersion": PERSISTENT_VOLUMES.api_version,
        "kind": PERSISTENT_VOLUMES.kind,
        "metadata": {
            "name": volume_name(claim),
            "annotations": {MADE_BY: driver, MADE_ON: node},
            # What is kept needs nobody to delete it.
            "finalizers": [FINALIZER] if written["persistentVolumeReclaimPolicy"] == "Delete" else [],
        },
        "spec": written,
    }


def _csi(claim: Object, parameters: Mapping[str, str], made: ProvisionedVolume, driver: str) -> Object:
    """Return what kubelet gives to the driver when a pod gets the volume."""
    csi: Object = {"driver": driver, "volumeHandle": made.volume_id, "volumeAttributes": dict(made.options)}
    if claim["spec"].get("volumeMode") != "Block" and parameters.get(_FS_TYPE):
        csi["fsType"] = parameters[_FS_TYPE]
    if secret := _publish_secret(parameters, claim, volume_name(claim)):
        csi["nodePublishSecretRef"] = secret
    return csi


def _term(segments: Mapping[str, str]) -> Object:
    return {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in segments.items()]}


def _publish_secret(parameters: Mapping[str, str], claim: Object, volume: str) -> Object | None:
    """Return the reference to the Secret that a driver gets at publish, as external-provisioner writes it."""
    name, namespace = (str(parameters.get(f"{_PUBLISH}{part}", "")) for part in ("name", "namespace"))
    if not (name or namespace):
        return None
    if not (name and namespace):
        raise InvalidRequest(f"the StorageClass has only one of {_PUBLISH}name and {_PUBLISH}namespace; give both")
    values = {
        "pv.name": volume,
        "pvc.name": claim["metadata"]["name"],
        "pvc.namespace": claim["metadata"]["namespace"],
        **{f"pvc.annotations['{key}']": value for key, value in (claim["metadata"].get("annotations") or {}).items()},
    }

    def known(match: re.Match[str]) -> str:
        if match[1] not in values:
            raise InvalidRequest(f"the StorageClass names a Secret by ${{{match[1]}}}, which is none of its claim's")
        return str(values[match[1]])

    return {"name": _TEMPLATE.sub(known, name), "namespace": _TEMPLATE.sub(known, namespace)}


# --- growing and deleting


def made_here(volume: Object, node: str) -> bool:
    """Whether this node's daemon has made a volume, or its driver did for the standard provisioner."""
    driver = annotation(volume, MADE_BY)
    if not driver or (volume["spec"].get("csi") or {}).get("driver") != driver:
        return False
    required = _required(volume)
    if on := annotation(volume, MADE_ON):
        return on == node and bool(required)
    mine = {"key": f"{driver}/node", "operator": "In", "values": [node]}
    return bool(required) and all(mine in (term.get("matchExpressions") or ()) for term in required)


def is_on_no_node(volume: Object, drivers: Container[str]) -> bool:
    """Whether a volume can be used everywhere, so that any node may grow and delete it, if it has one of the drivers.

    As external-provisioner has it with node-deployment: a volume without nodeAffinity is every node's.
    """
    driver = annotation(volume, MADE_BY)
    return driver in drivers and (volume["spec"].get("csi") or {}).get("driver") == driver and not _required(volume)


def is_elsewhere(volume: Object, here: Mapping[str, str]) -> bool:
    """Whether a volume is one of other nodes alone, going by its node affinity.

    Args:
        volume: of any maker.
        here: the topology of this node, as its driver tells it; empty if its volumes are on no node.
    """
    terms = _required(volume)
    return bool(terms) and all(_excludes(term, here) for term in terms)


def _excludes(term: Mapping[str, Any], here: Mapping[str, str]) -> bool:
    return any(
        one["operator"] == "In" and one["key"] in here and here[one["key"]] not in one["values"]
        for one in term.get("matchExpressions") or ()
    )


def has_volume(volume: Object, name: str, driver: str, handle: str) -> bool:
    """Whether an object has a name, or a driver's volume under any other one."""
    csi = volume["spec"].get("csi") or {}
    return volume["metadata"]["name"] == name or (csi.get("driver"), csi.get("volumeHandle")) == (driver, handle)


def _required(volume: Object) -> Sequence[Mapping[str, Any]]:
    """Return the terms of a volume's node affinity; none for one that can be used everywhere."""
    return ((volume["spec"].get("nodeAffinity") or {}).get("required") or {}).get("nodeSelectorTerms") or ()


def is_to_be_deleted(volume: Object) -> bool:
    """Whether nobody wants a volume any more, nor its data."""
    phase, policy = (volume.get("status") or {}).get("phase"), volume["spec"].get("persistentVolumeReclaimPolicy")
    return phase == "Released" and policy == "Delete"


def is_held_for_nothing(volume: Object) -> bool:
    """Whether a volume that is to be kept waits for its deletion before its object may go."""
    policy = volume["spec"].get("persistentVolumeReclaimPolicy")
    return policy != "Delete" and FINALIZER in (volume["metadata"].get("finalizers") or ())


def is_refused(claim: Object, size: int) -> bool:
    """Whether a claim's growth to a size is marked as impossible."""
    status = claim.get("status") or {}
    state = (status.get("allocatedResourceStatuses") or {}).get("storage")
    amount = (status.get("allocatedResources") or {}).get("storage")
    return state == "ControllerResizeInfeasible" and amount is not None and parse_quantity(str(amount)) == size


def size_of(volume: Object) -> int:
    """Return the bytes that a volume has."""
    return parse_quantity(str(volume["spec"]["capacity"]["storage"]))


def growth(claim: Object, volume: Object) -> int:
    """Return the bytes that a claim wants its volume to grow to; 0 if it is large enough."""
    reference = volume["spec"].get("claimRef") or {}
    if reference.get("uid") != claim["metadata"]["uid"] or (claim.get("status") or {}).get("phase") != "Bound":
        return 0
    wanted = parse_quantity(str(claim["spec"]["resources"]["requests"]["storage"]))
    return wanted if wanted > size_of(volume) else 0


def is_told(claim: Object, volume: Object) -> bool:
    """Whether kubelet knows that a volume has grown, or has no need to."""
    status = claim.get("status") or {}
    capacity = (status.get("capacity") or {}).get("storage")
    if status.get("phase") != "Bound" or capacity is None:
        return True  # it is bound with the size that the volume has
    has = parse_quantity(str(capacity))
    resizing = (status.get("allocatedResourceStatuses") or {}).get("storage", "")
    return has >= size_of(volume) or resizing.startswith("NodeResize")


def resizing(claim: Object, size: int, state: str) -> Object:
    """Return the status of a claim whose volume grows: state as of `allocatedResourceStatuses`."""
    kept = [
        one
        for one in (claim.get("status") or {}).get("conditions") or ()
        if one.get("type") not in {"Resizing", "FileSystemResizePending"}
    ]
    kind = "FileSystemResizePending" if state == "NodeResizePending" else "Resizing"
    told = {
        "Resizing": "the volume grows",
        "FileSystemResizePending": "the filesystem grows when kubelet has the volume for a pod",
    }
    conditions = [*kept, {"type": kind, "status": "True", "message": told[kind]}]
    amount = {"storage": str(write_quantity(size))}
    return {
        "status": {
            "allocatedResources": amount,
            "allocatedResourceStatuses": {"storage": state},
            "conditions": conditions,
        }
    }


# --- room


def storage_capacity(
    driver: str, storage_class: str, node: str, namespace: str, segments: Mapping[str, str], room: VolumeRoom
) -> Object:
    """Return the object that tells the scheduler how much room a class has on this node."""
    digest = hashlib.sha256(f"{node}\0{driver}\0{storage_class}".encode()).hexdigest()[:20]
    return {
        "apiVersion": CSI_STORAGE_CAPACITIES.api_version,
        "kind": CSI_STORAGE_CAPACITIES.kind,
        "metadata": {"name": f"nodeplug-{digest}", "namespace": namespace, "labels": capacity_labels(driver, node)},
        "storageClassName": storage_class,
        "nodeTopology": {"matchLabels": dict(segments)},
        # In whole Mi: a little more or less is no reason to tell all schedulers.
        "capacity": f"{room.available >> 20}Mi",
        **({} if room.largest is None else {"maximumVolumeSize": f"{room.largest >> 20}Mi"}),
    }


def is_same_room(one: Object, other: Object) -> bool:
    """Compare what two objects say of room: the API server writes 1024Mi as 1Gi (apimachinery, quantity.go)."""
    return all(_bytes_in(one.get(key)) == _bytes_in(other.get(key)) for key in ("capacity", "maximumVolumeSize"))


def _bytes_in(quantity: object) -> object:
    with suppress(InvalidRequest):
        return None if quantity is None else parse_quantity(str(quantity))
    return quantity  # somebody else has written it: it is replaced


def capacity_labels(driver: str, node: str) -> dict[str, str]:
    """Return the labels by which a node finds its own objects again."""
    managed = {"csi.storage.k8s.io/managed-by": managed_by(node)}
    return {"csi.storage.k8s.io/drivername": driver, **managed} if driver else managed


def managed_by(node: str) -> str:
    """Return who manages the objects of a node, as a label has it: at most 63 characters."""
    return f"nodeplug-{hashlib.sha256(node.encode()).hexdigest()[:20]}"


def event(about: Object, reason: str, message: str, node: str, *, warning: bool, now: str, number: str) -> Object:
    """Return an event about a claim or a volume."""
    metadata = about["metadata"]
    keys = {"namespace": metadata.get("namespace", ""), "name": metadata["name"], "uid": metadata["uid"]}
    return {
        "metadata": {"name": f"{metadata['name'][:200]}.{number}", "namespace": metadata.get("namespace") or "default"},
        "involvedObject": {"kind": about["kind"], "apiVersion": about["apiVersion"], **keys},
        "reason": reason,
        "message": message[:1000],
        "type": "Warning" if warning else "Normal",
        "source": {"component": "nodeplug-provisioner", "host": node},
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
    }
