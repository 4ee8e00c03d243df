"""What each attachment consists of, on disk before it is made.

Owns: a record for each attachment: all that a DEL needs when objects, pod and API server are gone.
Refuses: to attach and detach.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from nodeplug import ClusterPod, CniAttachmentRequest, CniResult, Entry, Host
from nodeplug_net.networks.plan import Conflist, Planned

BEGUN: Final = "begun"
ATTACHED: Final = "attached"
_RESULT: Final[TypeAdapter[CniResult | None]] = TypeAdapter(CniResult | None)


@dataclass(frozen=True, slots=True)
class Record:
    """One attachment of a pod.

    Attributes:
        network: of the runtime's configuration.
        container_id: CNI_CONTAINERID.
        ifname: CNI_IFNAME.
        pod: whose it is; without a name where the runtime did not say.
        plans: its interfaces.
        results: of those that were attached, in this order; None for one that was not.
    """

    network: str
    container_id: str
    ifname: str
    pod: ClusterPod
    plans: tuple[Planned, ...]
    results: tuple[CniResult | None, ...] = ()

    @property
    def key(self) -> str:
        """Of the record."""
        return key_of(self.network, self.container_id, self.ifname)

    def result(self, index: int) -> CniResult | None:
        """Return what an interface got."""
        return self.results[index] if index < len(self.results) else None


def key_of(network: str, container_id: str, ifname: str) -> str:
    """Return the key of a record."""
    return f"{network}/{container_id}/{ifname}"


@dataclass(slots=True)
class Records:
    """All records. Any thread.

    Attributes:
        host: of the plugin.
    """

    host: Host
    _held: dict[str, frozenset[str]] = field(default_factory=dict)
    _further: dict[str, tuple[Conflist, ...]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def write(self, record: Record, phase: str) -> None:
        """Write a record, durably.

        Raises:
            PluginError: the disk refuses.
        """
        pod = {"namespace": record.pod.namespace, "name": record.pod.name, "uid": record.pod.uid}
        request = {"network": record.network, "container_id": record.container_id, "ifname": record.ifname, "pod": pod}
        results: Sequence[Any] = [_RESULT.dump_python(one, mode="json") for one in record.results]
        data = {"plans": [one.as_dict() for one in record.plans], "results": results}
        self.host.journal.write(record.key, phase=phase, request=request, data=data)
        self._hold(record.key, frozenset(one.held for one in record.plans if one.held))
        self._further[record.key] = _further_of(record)

    def find(self, request: CniAttachmentRequest) -> tuple[str, Record] | None:
        """Return how far an attachment got, and its record; None without one."""
        entry = self.host.journal.read(key_of(request.network, request.container_id, request.ifname))
        return None if entry is None else (entry.phase, _record(entry))

    def remove(self, record: Record) -> None:
        """Forget an attachment that has ended."""
        self.host.journal.remove(record.key)
        self._hold(record.key, frozenset())
        self._further.pop(record.key, None)

    def further(self) -> Mapping[str, Conflist]:
        """Return the networks that pods have besides their default one, by name; the newest configuration of each."""
        return {str(one["name"]): one for conflists in list(self._further.values()) for one in conflists}

    def all(self) -> Iterator[tuple[str, Record]]:
        """Yield how far each got, and its record."""
        for entry in self.host.journal.entries():
            try:
                yield entry.phase, _record(entry)
            except (KeyError, TypeError, ValueError) as error:
                self.host.log.error("the record %s cannot be read: %s", entry.key, error)

    def recover(self) -> list[tuple[str, Record]]:
        """Return all records, and say which networks they hold."""
        found = list(self.all())
        with self._lock:
            self._held = {one.key: held for _, one in found if (held := frozenset(p.held for p in one.plans if p.held))}
            self._further = {one.key: _further_of(one) for _, one in found}
            self._tell()
        return found

    def _hold(self, key: str, names: frozenset[str]) -> None:
        with self._lock:
            if self._held.get(key, frozenset()) == names:
                return
            self._held.pop(key, None)
            if names:
                self._held[key] = names
            self._tell()

    def _tell(self) -> None:
        self.host.networks.hold(list(Counter(name for names in self._held.values() for name in names)))


def _further_of(record: Record) -> tuple[Conflist, ...]:
    return tuple(one.conflist for one in record.plans[1:])


def _record(entry: Entry) -> Record:
    request, data = entry.request, entry.data
    pod = request["pod"]
    return Record(
        request["network"],
        request["container_id"],
        request["ifname"],
        ClusterPod(pod["namespace"], pod["name"], uid=pod["uid"]),
        tuple(map(Planned.from_dict, data["plans"])),
        tuple(_RESULT.validate_python(one) for one in data["results"]),
    )
