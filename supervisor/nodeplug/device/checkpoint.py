"""Who holds devices and is not in podresources: regular init containers, which keep what they got for the pod's life.

Owns: reading kubelet's ledger (`kubelet_internal_checkpoint`), and judging what in it is older than the list.
Refuses: to write there, to fail, and to contradict the list: it only adds containers that the list leaves out.

Kubelet writes the file at each allocation and at each list from a plugin, not when a pod ends. So a pod that the list
once named and no longer names is gone, whatever the file says, and so is one whose folder kubelet has removed.
"""

import json
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.values import DeviceId, ResourceName
from nodeplug.device.holders import Holder, Holdings

CHECKPOINT: Final = "kubelet_internal_checkpoint"
_LIMIT: Final = 64 << 20
_NAMELESS: Final = "?"
"""The namespace of a pod of which only the UID is known."""


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What kubelet has written down for one container and resource."""

    pod_uid: str
    container: str
    resource: ResourceName
    ids: frozenset[DeviceId]


def read_ledger(path: Path) -> list[LedgerEntry]:
    """Read kubelet's ledger; one that is missing or cannot be understood counts as empty."""
    try:
        entries = json.loads(read_bounded(path, _LIMIT))["Data"]["PodDeviceEntries"] or ()
        return [
            LedgerEntry(
                str(one["PodUID"]), str(one["ContainerName"]), ResourceName(one["ResourceName"]), _ids(one["DeviceIDs"])
            )
            for one in entries
        ]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return []


def _ids(found: Any) -> frozenset[DeviceId]:
    """Read ids by NUMA node, or the plain list of old kubelets."""
    lists = found.values() if isinstance(found, dict) else [found]
    return frozenset(DeviceId(name) for names in lists for name in names)


@dataclass(slots=True)
class Unlisted:
    """What the ledger knows beyond the list. Used from one task."""

    _named: set[str] = field(default_factory=set)

    def take(self, entries: Iterable[LedgerEntry], listed: Holdings, alive: Collection[str] | None) -> Holdings:
        """Return what containers hold beyond what the list says.

        `alive` has the UIDs of the pods that have a folder; None if they cannot be seen.
        """
        entries = list(entries)
        pods = {one.pod_uid: holder for one in entries if (holder := _listed_as(one, listed)) is not None}
        gone = self._named - pods.keys()
        self._named = (self._named | pods.keys()) & {one.pod_uid for one in entries}
        told = {(resource, name) for (resource, _), ids in listed.items() for name in ids}
        found: dict[tuple[ResourceName, Holder], frozenset[DeviceId]] = {}
        for one in entries:
            left = frozenset(name for name in one.ids if (one.resource, name) not in told)
            if left and one.pod_uid not in gone and (alive is None or one.pod_uid in alive):
                pod = pods.get(one.pod_uid)
                named = Holder(pod.namespace, pod.pod, one.container) if pod else _nameless(one)
                found[one.resource, named] = found.get((one.resource, named), frozenset()) | left
        return found


def _listed_as(entry: LedgerEntry, listed: Holdings) -> Holder | None:
    """Return the listed container that an entry is about: no two containers share an id."""
    return next(
        (
            holder
            for (resource, holder), ids in listed.items()
            if resource == entry.resource and holder.container == entry.container and ids <= entry.ids
        ),
        None,
    )


def _nameless(entry: LedgerEntry) -> Holder:
    return Holder(_NAMELESS, entry.pod_uid, entry.container)
