"""What devices say of themselves beside their health: properties to choose by, and how much there is of them.

Owns: the names, which are those of NVIDIA's driver for Dynamic Resource Allocation where it has the same
(dra-driver-nvidia-gpu, cmd/gpu-kubelet-plugin/deviceinfo.go); versions are text here. What is not known is left out.
Refuses: what changes while a card works, such as its temperature: each change is sent to the API server.

All units of a card have one mapping in common: there may be thousands.
"""

from collections.abc import Mapping
from typing import Final

from nodeplug import AttributeValue
from nodeplug_gpu.cards import Card, MigInstance

MEMORY: Final = "memory"
"""The capacity in bytes, and the amount of a unit."""
REPLICAS: Final = "replicas"
"""The capacity of a card or an instance that is shared by time: each container gets all of it at turns."""
_STANDARD: Final = "resource.kubernetes.io"
"""The domain of properties that devices of several drivers have in common, to be matched."""


def card_attributes(card: Card, driver_version: str) -> dict[str, AttributeValue]:
    """Return the properties of a card."""
    found: dict[str, AttributeValue] = {"type": "gpu", "uuid": card.uuid, "productName": card.model}
    if any(card.compute_capability):
        found["cudaComputeCapability"] = ".".join(map(str, card.compute_capability))
    if driver_version:
        found["driverVersion"] = driver_version
    if card.pci:
        found[f"{_STANDARD}/pciBusID"] = card.pci
    if card.pcie_root:
        found[f"{_STANDARD}/pcieRoot"] = card.pcie_root
    if card.numa_node is not None and card.numa_node >= 0:
        found[f"{_STANDARD}/numaNode"] = card.numa_node
    return found


def instance_attributes(card: Card, instance: MigInstance, driver_version: str) -> dict[str, AttributeValue]:
    """Return the properties of a MIG instance; where it is, and what drives it, is its card's."""
    own = {"type": "mig", "uuid": instance.uuid, "parentUUID": card.uuid, "profile": instance.profile}
    return {**card_attributes(card, driver_version), **own}


def capacity(memory: int) -> Mapping[str, int]:
    """Return the capacity of a card or an instance; none where it is not known."""
    return {MEMORY: memory} if memory else {}
