"""Which container holds which devices: the stand-in's ledger and its checkpoint file.

Owns: entries, the ids in use, and the JSON that kubelet keeps as `kubelet_internal_checkpoint`.
Refuses: RPCs. The checksum of the real file hashes a Go structure; here it is a CRC of the data.
"""

import base64
import json
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb

CHECKPOINT: Final = "kubelet_internal_checkpoint"
_NAMESPACE: Final = uuid.UUID("6ba7b810-9dad-11d1-80b4-00c04fd430c8")


@dataclass(frozen=True, slots=True, order=True)
class ContainerKey:
    """One container of one pod."""

    namespace: str
    pod: str
    container: str

    @property
    def pod_uid(self) -> str:
        """A UID that a pod of this name always has, here."""
        return str(uuid.uuid5(_NAMESPACE, f"{self.namespace}/{self.pod}"))


@dataclass(frozen=True, slots=True)
class Entry:
    """What a container holds of one resource.

    Attributes:
        ids: the devices.
        response: what the plugin answered to Allocate.
        init: a regular init container: its ids are reusable in the pod, and podresources does not list it.
    """

    ids: frozenset[str]
    response: pb.ContainerAllocateResponse
    init: bool = False


@dataclass(slots=True)
class Ledger:
    """All entries, by container and resource."""

    entries: dict[tuple[ContainerKey, str], Entry] = field(default_factory=dict)

    def held(self, container: ContainerKey, resource: str) -> frozenset[str]:
        """Return the ids that a container holds."""
        entry = self.entries.get((container, resource))
        return entry.ids if entry is not None else frozenset()

    def in_use(self, resource: str) -> frozenset[str]:
        """Return the ids that any container holds."""
        return frozenset(name for (_, of), entry in self.entries.items() if of == resource for name in entry.ids)

    def reusable(self, container: ContainerKey, resource: str) -> frozenset[str]:
        """Return what the pod's init containers hold and none of its app containers has taken over."""
        init: set[str] = set()
        taken: set[str] = set()
        for (key, of), entry in self.entries.items():
            if of == resource and (key.namespace, key.pod) == (container.namespace, container.pod):
                (init if entry.init else taken).update(entry.ids)
        return frozenset(init - taken)

    def remove_pod(self, namespace: str, pod: str) -> None:
        """Free what a pod holds."""
        self.entries = {
            key: entry for key, entry in self.entries.items() if (key[0].namespace, key[0].pod) != (namespace, pod)
        }

    def write(self, folder: Path, registered: Mapping[str, frozenset[str]]) -> None:
        """Write the checkpoint; `registered` holds the healthy ids of each resource."""
        data = {
            "PodDeviceEntries": [
                {
                    "PodUID": key.pod_uid,
                    "ContainerName": key.container,
                    "ResourceName": resource,
                    "DeviceIDs": {"-1": sorted(entry.ids)},
                    "AllocResp": base64.b64encode(entry.response.SerializeToString()).decode(),
                }
                for (key, resource), entry in sorted(self.entries.items(), key=lambda item: item[0])
            ],
            "RegisteredDevices": {resource: sorted(ids) for resource, ids in registered.items()},
        }
        text = json.dumps({"Data": data, "Checksum": zlib.crc32(json.dumps(data).encode())})
        (folder / CHECKPOINT).write_text(text)

    def restore(self, folder: Path, init: frozenset[ContainerKey]) -> frozenset[str]:
        """Read the checkpoint after a restart; pods are matched by UID.

        Args:
            folder: where the checkpoint lies.
            init: the containers that are init containers (the API server knows; the file does not).

        Returns:
            The resources that kubelet remembers: each comes back with no device until it registers.
        """
        path = folder / CHECKPOINT
        if not path.exists():
            self.entries = {}
            return frozenset()
        data: dict[str, Any] = json.loads(path.read_text())["Data"]
        known = {(key.pod_uid, key.container): key for key, _ in self.entries}
        self.entries = {}
        for item in data["PodDeviceEntries"]:
            key = known.get((item["PodUID"], item["ContainerName"]))
            if key is None:
                continue
            response = pb.ContainerAllocateResponse.FromString(base64.b64decode(item["AllocResp"]))
            ids = frozenset(name for names in item["DeviceIDs"].values() for name in names)
            self.entries[key, item["ResourceName"]] = Entry(ids, response, key in init)
        held = {item["ResourceName"] for item in data["PodDeviceEntries"]}
        return frozenset(data["RegisteredDevices"]) | held
