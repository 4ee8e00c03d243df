"""What a cluster has to know of a volume driver: its CSIDriver and its classes, as its claim and hooks say.

Owns: the content of these objects, and which of a CSIDriver's fields can never be changed.
Refuses: to read or write them: `manifests` prints, `cluster` compares.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.contract.errors import InvalidRequest, PluginError
from nodeplug.contract.values import VolumeClaim
from nodeplug.csi.codec import driver_name
from nodeplug.kubeapi.resources import CSI_DRIVERS, STORAGE_CLASSES, VOLUME_SNAPSHOT_CLASSES, Object

FIXED: Final = ("attachRequired", "volumeLifecycleModes")
"""Fields of a CSIDriver that no update may change (k8s.io/kubernetes, pkg/apis/storage/validation)."""


@dataclass(frozen=True, slots=True)
class Driver:
    """A volume claim as CSI sees it.

    Attributes:
        name: of the CSI driver.
        claim: what the plugin claims.
        hooks: what it implements.
    """

    name: str
    claim: VolumeClaim
    hooks: frozenset[str]

    @property
    def provisions(self) -> bool:
        """It creates volumes."""
        return "volume_create" in self.hooks

    @property
    def takes_snapshots(self) -> bool:
        """It creates volumes, and takes snapshots of them."""
        return self.provisions and "volume_snapshot" in self.hooks

    @property
    def spec(self) -> dict[str, Any]:
        """The specification of its CSIDriver."""
        modes = ["Persistent", *(["Ephemeral"] if self.claim.inline else [])]
        made: dict[str, Any] = {
            "attachRequired": False,
            "podInfoOnMount": True,
            "fsGroupPolicy": "File" if self.claim.fs_group == "kubelet" else "None",
            "volumeLifecycleModes": modes,
            "storageCapacity": self.provisions and "volume_capacity" in self.hooks,
            "requiresRepublish": self.claim.republish,
        }
        if self.claim.tokens:
            made["tokenRequests"] = [{"audience": audience} for audience in self.claim.tokens]
        return made

    @property
    def csi_driver(self) -> Object:
        """Its CSIDriver object."""
        kind = {"apiVersion": CSI_DRIVERS.api_version, "kind": CSI_DRIVERS.kind}
        return {**kind, "metadata": {"name": self.name}, "spec": self.spec}

    def storage_class(self, name: str) -> Object:
        """Return a StorageClass for its volumes."""
        return {
            "apiVersion": STORAGE_CLASSES.api_version,
            "kind": STORAGE_CLASSES.kind,
            "metadata": {"name": name},
            "provisioner": self.name,
            "volumeBindingMode": "WaitForFirstConsumer",
            "reclaimPolicy": "Delete",
            "allowVolumeExpansion": "volume_expand" in self.hooks,
        }

    @property
    def snapshot_class(self) -> Object:
        """The VolumeSnapshotClass of its snapshots, which has its name."""
        kind = {"apiVersion": VOLUME_SNAPSHOT_CLASSES.api_version, "kind": VOLUME_SNAPSHOT_CLASSES.kind}
        return {**kind, "metadata": {"name": self.name}, "driver": self.name, "deletionPolicy": "Delete"}


def drivers_of(claimed: Iterable[tuple[VolumeClaim, frozenset[str]]]) -> tuple[list[Driver], list[str]]:
    """Return the drivers of all claims, and why others have none."""
    found: dict[str, Driver] = {}
    refused: list[str] = []
    for claim, hooks in claimed:
        try:
            name = driver_name(claim)
        except PluginError as error:
            refused.append(error.message)
            continue
        if name in found:
            refused.append(f"the CSI driver of {claim.name!r} would be {name!r}, as that of {found[name].claim.name!r}")
        else:
            found[name] = Driver(name, claim, hooks)
    return [found[name] for name in sorted(found)], refused


def chosen(drivers: Collection[Driver], names: Collection[str]) -> list[Driver]:
    """Return the drivers that were named, by their names or their claims; without names all.

    Raises:
        InvalidRequest: there is no such driver.
    """
    for name in names:
        if not any(name in {one.name, one.claim.name} for one in drivers):
            there = ", ".join(one.name for one in drivers) or "none"
            raise InvalidRequest(f"no enabled plugin has a CSI driver {name!r}; there are: {there}")
    return [one for one in drivers if not names or {one.name, one.claim.name} & set(names)]
