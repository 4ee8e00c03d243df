"""Who holds which device: the values that looks at kubelet end in.

Owns: a container as kubelet's surfaces name it, the containers that use a claim, and the arithmetic of holdings.
Refuses: to ask kubelet (`podresources` and `checkpoint` do).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from nodeplug.contract.values import DeviceId, ResourceName


@dataclass(frozen=True, slots=True, order=True)
class Holder:
    """A container, as podresources names it (there is no pod UID)."""

    namespace: str
    pod: str
    container: str


Holdings = Mapping[tuple[ResourceName, Holder], frozenset[DeviceId]]
"""The ids that each container holds of each resource."""
ClaimUsers = Mapping[tuple[str, str], frozenset[Holder]]
"""The containers that use each claim of devices, by its namespace and name: kubelet tells no UID of a claim here."""


def joined(one: Holdings, other: Holdings) -> Holdings:
    """Join two holdings."""
    return {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in (*one, *other)}


def by_resource(holdings: Holdings) -> Mapping[ResourceName, Mapping[DeviceId, Holder]]:
    """Return who holds each id."""
    table: dict[ResourceName, dict[DeviceId, Holder]] = {}
    for (resource, holder), ids in holdings.items():
        table.setdefault(resource, {}).update(dict.fromkeys(ids, holder))
    return table
