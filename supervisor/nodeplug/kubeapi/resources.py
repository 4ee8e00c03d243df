"""What the API server has, and where: groups, versions, paths.

Owns: the resources that nodeplug reads or writes, and how their paths are written.
Refuses: what is in an object. Objects are plain dictionaries, as JSON has them.
"""

from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from nodeplug.contract.errors import InvalidRequest

Object = dict[str, Any]
"""One object of the API, or a list of them, as JSON has it."""


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource of the API (Kubernetes API concepts, "Resource URIs").

    Attributes:
        group: such as `storage.k8s.io`; empty for the core.
        version: such as `v1`.
        plural: its name in paths and roles.
        kind: of its objects.
        namespaced: its objects are in namespaces.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = False

    @property
    def api_version(self) -> str:
        """The `apiVersion` of its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", part: str = "") -> str:
        """Return the path of all objects, of those in a namespace, of one, or of a part of one (a subresource).

        Raises:
            InvalidRequest: a name that no path can carry, or a namespace where there is none.
        """
        if namespace and not self.namespaced:
            raise InvalidRequest(f"{self.plural} are in no namespace, and {namespace!r} was given")
        if name and self.namespaced and not namespace:
            raise InvalidRequest(f"the namespace of {self.plural} {name!r} is missing")
        words = ["apis", self.group, self.version] if self.group else ["api", self.version]
        words += ["namespaces", namespace] if namespace else []
        words += [self.plural, *filter(None, (name, part))]
        if any(word in {".", ".."} or "/" in word for word in words):
            raise InvalidRequest(f"{name or namespace!r} cannot be the name of an object")
        return "/" + "/".join(quote(word, safe="") for word in words)


def key_of(found: Object) -> str:
    """Return `namespace/name`, or the name alone."""
    metadata = found["metadata"]
    return f"{metadata['namespace']}/{metadata['name']}" if metadata.get("namespace") else str(metadata["name"])


NODES: Final = Resource("", "v1", "nodes", "Node")
PODS: Final = Resource("", "v1", "pods", "Pod", namespaced=True)
EVENTS: Final = Resource("", "v1", "events", "Event", namespaced=True)
REPORTED_EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event", namespaced=True)
"""The same objects as `EVENTS`, with a series and a note."""
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap", namespaced=True)
SECRETS: Final = Resource("", "v1", "secrets", "Secret", namespaced=True)
NAMESPACES: Final = Resource("", "v1", "namespaces", "Namespace")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", "ServiceAccount", namespaced=True)
PERSISTENT_VOLUMES: Final = Resource("", "v1", "persistentvolumes", "PersistentVolume")
PERSISTENT_VOLUME_CLAIMS: Final = Resource("", "v1", "persistentvolumeclaims", "PersistentVolumeClaim", namespaced=True)
STORAGE_CLASSES: Final = Resource("storage.k8s.io", "v1", "storageclasses", "StorageClass")
CSI_DRIVERS: Final = Resource("storage.k8s.io", "v1", "csidrivers", "CSIDriver")
CSI_NODES: Final = Resource("storage.k8s.io", "v1", "csinodes", "CSINode")
CSI_STORAGE_CAPACITIES: Final = Resource(
    "storage.k8s.io", "v1", "csistoragecapacities", "CSIStorageCapacity", namespaced=True
)
VOLUME_SNAPSHOT_CLASSES: Final = Resource(
    "snapshot.storage.k8s.io", "v1", "volumesnapshotclasses", "VolumeSnapshotClass"
)
NETWORK_ATTACHMENT_DEFINITIONS: Final = Resource(
    "k8s.cni.cncf.io", "v1", "network-attachment-definitions", "NetworkAttachmentDefinition", namespaced=True
)
RESOURCE_SLICES: Final = Resource("resource.k8s.io", "v1", "resourceslices", "ResourceSlice")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", namespaced=True)
DEVICE_CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", "DeviceClass")
NETWORKS: Final = Resource("nodeplug.io", "v1alpha1", "networks", "Network")
"""Ours: see `deploy/crds/networks.nodeplug.io.yaml`."""
