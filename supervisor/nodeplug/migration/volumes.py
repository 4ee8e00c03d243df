"""A PersistentVolume of FlexVolume as one of CSI: what it becomes, and why it cannot.

Owns: the translation of one object into the other. Pure: no file, no server.
Refuses: to exchange them (`exchange`), and to copy what FlexVolume's options must not hold.

Source: k8s.io/api/core/v1, FlexPersistentVolumeSource and CSIPersistentVolumeSource; PersistentVolume sources are
immutable, so that the object is replaced under its name.
"""

from collections.abc import Mapping
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest
from nodeplug.kubeapi.resources import PERSISTENT_VOLUMES, Object

KUBELETS: Final = "kubernetes.io/"
"""The prefix of options that are kubelet's; an object must not have them."""
PROVISIONED_BY: Final = "pv.kubernetes.io/provisioned-by"
"""Who deletes the volume when its claim is gone."""
_DROPPED: Final = frozenset({"kubectl.kubernetes.io/last-applied-configuration"})
_METADATA: Final = ("name", "labels", "annotations")
PHASES: Final = frozenset({"Bound", "Available"})


def flex_driver(volume: Mapping[str, Any]) -> str:
    """Return the FlexVolume driver of a PersistentVolume; empty if it has another source."""
    source = (volume.get("spec") or {}).get("flexVolume") or {}
    return str(source.get("driver") or "")


def options_of(volume: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of a FlexVolume."""
    return dict(volume["spec"]["flexVolume"].get("options") or {})


def claim_of(volume: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return namespace, name and uid of the claim that has a volume; empty if none has it."""
    claim = (volume.get("spec") or {}).get("claimRef") or {}
    return str(claim.get("namespace", "")), str(claim.get("name", "")), str(claim.get("uid", ""))


def as_csi(volume: Mapping[str, Any], driver: str, handle: str, affinity: Mapping[str, Any] | None = None) -> Object:
    """Return the PersistentVolume of CSI that takes the place of one of FlexVolume.

    Args:
        volume: what is there.
        driver: the CSI driver.
        handle: the volumeHandle.
        affinity: where the volume is, for one that does not say it.

    Raises:
        InvalidRequest: the volume cannot be translated; the message says why.
    """
    made = portable(volume)
    spec = made["spec"]
    flex = spec.pop("flexVolume")
    options = dict(flex.get("options") or {})
    theirs = sorted(key for key in options if key.startswith(KUBELETS))
    if theirs:
        raise InvalidRequest(f"its options {', '.join(theirs)} are kubelet's own: remove them from the volume")
    csi: Object = {"driver": driver, "volumeHandle": handle, "volumeAttributes": options}
    if flex.get("fsType"):
        csi["fsType"] = flex["fsType"]
    if flex.get("readOnly"):
        csi["readOnly"] = True
    if flex.get("secretRef"):
        csi["nodePublishSecretRef"] = _secret(flex["secretRef"], claim_of(volume)[0])
    spec["csi"] = csi
    if affinity is not None and not spec.get("nodeAffinity"):
        spec["nodeAffinity"] = dict(affinity)
    annotations = made["metadata"].get("annotations") or {}
    if PROVISIONED_BY in annotations:  # otherwise the provisioner of FlexVolume would be asked to delete it
        annotations[PROVISIONED_BY] = driver
    return made


def _secret(reference: Mapping[str, Any], namespace: str) -> Object:
    where = reference.get("namespace") or namespace
    if not where:
        raise InvalidRequest("its secretRef has no namespace, and there is no claim to take it from: add it")
    return {"name": reference.get("name", ""), "namespace": where}


def portable(volume: Mapping[str, Any]) -> Object:
    """Return a PersistentVolume as it can be created again: without what only this one object had.

    Its claimRef keeps the uid of the claim, by which the claim knows it again.
    """
    metadata = volume["metadata"]
    kept = {name: _copy(metadata[name]) for name in _METADATA if metadata.get(name)}
    if "annotations" in kept:
        kept["annotations"] = {key: value for key, value in kept["annotations"].items() if key not in _DROPPED}
    spec = _copy(volume["spec"])
    if spec.get("claimRef"):
        spec["claimRef"].pop("resourceVersion", None)
    return {"apiVersion": "v1", "kind": PERSISTENT_VOLUMES.kind, "metadata": kept, "spec": spec}


def _copy(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _copy(inner) for key, inner in value.items()}
    return [_copy(inner) for inner in value] if isinstance(value, list) else value


def affinity_to(node: Mapping[str, Any]) -> Object:
    """Return the affinity of a volume that is on one node alone.

    Raises:
        InvalidRequest: the node has no label with its host name, which kubelet gives it.
    """
    host = (node["metadata"].get("labels") or {}).get("kubernetes.io/hostname")
    if not host:
        raise InvalidRequest(f"node {node['metadata']['name']} has no label kubernetes.io/hostname")
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": [host]}]}
    return {"required": {"nodeSelectorTerms": [term]}}
