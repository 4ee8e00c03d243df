"""Which container holds which devices: the stand-in's ledger.

Owns: entries, the ids in use, what init containers leave to later ones, and when finished pods are forgotten.
Refuses: RPCs, and the file that it is kept in.
"""

import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb

NO_NODE: Final = -1
"""Stands for "no NUMA node" among the nodes of an entry."""
Kind = Literal["app", "init", "sidecar"]
"""Of a container: app, regular init container, or restartable init container."""
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
        return _pod_uid(self.namespace, self.pod)


@lru_cache(maxsize=4096)
def _pod_uid(namespace: str, pod: str) -> str:
    return str(uuid.uuid5(_NAMESPACE, f"{namespace}/{pod}"))


@dataclass(frozen=True, slots=True)
class DeviceAllocateInfo:
    """What a container holds of one resource.

    Attributes:
        nodes: the devices by NUMA node; one with several nodes is listed for each.
        response: the plugin's response to Allocate.
    """

    nodes: Mapping[int, frozenset[str]]
    response: pb.ContainerAllocateResponse

    @property
    def ids(self) -> frozenset[str]:
        """The devices."""
        return frozenset(name for names in self.nodes.values() for name in names)


@dataclass(slots=True)
class Ledger:
    """All entries.

    Attributes:
        entries: by container and resource.
        orphans: entries of a checkpoint whose pod kubelet does not know yet, by pod UID, container and resource.
        kinds: of the containers that kubelet knows.
        in_use: ids by resource. Kubelet rebuilds it from the entries only when an Allocate failed or a pod is
            forgotten: ids that were picked in vain stay in use until then.
    """

    entries: dict[tuple[ContainerKey, str], DeviceAllocateInfo] = field(default_factory=dict)
    orphans: dict[tuple[str, str, str], DeviceAllocateInfo] = field(default_factory=dict)
    kinds: dict[ContainerKey, Kind] = field(default_factory=dict)
    in_use: dict[str, set[str]] = field(default_factory=dict)
    _in_flight: list[tuple[str, set[str]]] = field(default_factory=list)

    def reset(self) -> None:
        """Know nothing but the containers, as after a start."""
        self.entries, self.orphans = {}, {}
        self.rebuild()

    def meet(self, container: ContainerKey, kind: Kind) -> None:
        """Get to know a container; what a checkpoint holds for it becomes its own."""
        self.kinds[container] = kind
        place = (container.pod_uid, container.container)
        for uid, name, resource in [key for key in self.orphans if key[:2] == place]:
            self.entries[container, resource] = self.orphans.pop((uid, name, resource))

    def held(self, container: ContainerKey, resource: str) -> frozenset[str]:
        """Return the ids that a container holds."""
        entry = self.entries.get((container, resource))
        return entry.ids if entry is not None else frozenset()

    def of(self, container: ContainerKey) -> dict[str, DeviceAllocateInfo]:
        """Return what a container holds, by resource."""
        return {resource: entry for (owner, resource), entry in self.entries.items() if owner == container}

    def reusable(self, container: ContainerKey, resource: str) -> frozenset[str]:
        """Return what the pod's regular init containers hold and no other container of it has taken over."""
        init: set[str] = set()
        taken: set[str] = set()
        for (key, of), entry in self.entries.items():
            if of == resource and (key.namespace, key.pod) == (container.namespace, container.pod):
                (init if self.kinds.get(key) == "init" else taken).update(entry.ids)
        return frozenset(init - taken)

    @contextmanager
    def picking(self, resource: str, taken: set[str]) -> Iterator[None]:
        """Keep ids that are being picked in use even if the set is rebuilt meanwhile."""
        mark = (resource, taken)
        self._in_flight.append(mark)
        try:
            yield
        finally:
            self._in_flight = [other for other in self._in_flight if other[1] is not taken]

    def forget_finished(self, active: Collection[ContainerKey]) -> None:
        """Free what pods held that are no longer active (kubelet's UpdateAllocatedDevices)."""
        uids = {key.pod_uid for key in active}
        self.kinds = {key: kind for key, kind in self.kinds.items() if key.pod_uid in uids}
        entries = {place: entry for place, entry in self.entries.items() if place[0].pod_uid in uids}
        orphans = {place: entry for place, entry in self.orphans.items() if place[0] in uids}
        if (len(entries), len(orphans)) != (len(self.entries), len(self.orphans)):
            self.entries, self.orphans = entries, orphans
            self.rebuild()

    def rebuild(self) -> None:
        """Rebuild the ids in use from the entries."""
        fresh: dict[str, set[str]] = {}
        held = [(resource, entry.ids) for (_, resource), entry in self.entries.items()]
        held += [(resource, entry.ids) for (_, _, resource), entry in self.orphans.items()]
        for resource, ids in [*held, *self._in_flight]:
            fresh.setdefault(resource, set()).update(ids)
        for resource in self.in_use.keys() | fresh.keys():
            names = self.in_use.setdefault(resource, set())  # the same set: a pick in progress uses it
            names.clear()
            names.update(fresh.get(resource, ()))
