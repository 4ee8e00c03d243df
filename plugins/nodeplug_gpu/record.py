"""A card and how it was advertised, for as long as a container may still have an allocation of it.

Owns: the record, what two of them say together, and the form on disk, as version 0.1.0 wrote it.
Refuses: to read or write one (`allocations` does).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from nodeplug_gpu.cards import Card, MigInstance, Uuid
from nodeplug_gpu.config import Kind

DISPUTED: Final = "of two sections"
"""Limits of a card whose records contradict each other: the configured ones take effect once it has no holder."""
MALFORMED: Final = (KeyError, TypeError, ValueError, OverflowError)
"""What `decoded` raises for data that is not a record."""
_MAX_FORMER_INSTANCES: Final = 64

RecordKey = tuple[Uuid, str, Kind]
"""Card, main resource of the entry, kind of sharing."""


@dataclass(frozen=True, slots=True)
class AllocationRecord:
    """A card and how it was advertised: allocations made that way may still exist.

    Attributes:
        card: as it was seen last.
        resource: the entry's main resource.
        sharing: the entry's kind of sharing: the same resource name may have been shared in another way before.
        former_instances: UUIDs of MIG instances that it had and that may still be allocated, the latest last.
        limits: under which its holders run (see `limits`); None in a record written before limits were recorded.
        names: of the resources that the entry has advertised, and that its holders may have; the main one alone in a
            record that does not say.
    """

    card: Card
    resource: str
    sharing: Kind
    former_instances: tuple[str, ...] = ()
    limits: str | None = None
    names: tuple[str, ...] = ()

    def succeeding(self, before: "AllocationRecord | None") -> "AllocationRecord":
        """Return the record with the instances, names and limits of an earlier one: these end with its holders."""
        if before is None:
            return self
        limits = self.limits if before.limits is None else before.limits
        present = [one.uuid for one in self.card.instances]
        former = [*before.former_instances, *(one.uuid for one in before.card.instances), *self.former_instances]
        kept = tuple(uuid for uuid in dict.fromkeys(former) if uuid not in present)[-_MAX_FORMER_INSTANCES:]
        names = tuple(dict.fromkeys((*before.names, *self.names)))
        return replace(self, former_instances=kept, limits=limits, names=names)

    def joined(self, other: "AllocationRecord") -> "AllocationRecord":
        """Return one record for what two sections have noted, when only one of them could have the card at a time."""
        limits = self.limits if self.limits == other.limits else DISPUTED
        return replace(self.succeeding(other), limits=limits)

    @property
    def key(self) -> RecordKey:
        """What distinguishes it from every other record."""
        return (self.card.uuid, self.resource, self.sharing)

    def encoded(self) -> Mapping[str, Any]:
        """Return the form on disk: that of 0.1.0, wherever the main resource is the only name."""
        names = {} if self.names == (self.resource,) else {"names": self.names}
        return {
            # Where it is plugged in, 0.1.0 did not know, and nobody asks of a card that is gone.
            "card": {name: value for name, value in asdict(self.card).items() if name != "pcie_root"},
            "resource": self.resource,
            "sharing": self.sharing,
            "past": self.former_instances,
            "terms": self.limits,
            **names,
        }


def decoded(data: Mapping[str, Any]) -> AllocationRecord:
    """Read the form on disk.

    Raises:
        KeyError, TypeError, ValueError: it is not a record.
    """
    card: Mapping[str, Any] = data["card"]
    instances = tuple(MigInstance(**one) for one in card["instances"])
    major, minor = card["compute_capability"]
    made = Card(**{**card, "instances": instances, "compute_capability": (int(major), int(minor))})
    if not (isinstance(made.uuid, str) and isinstance(made.memory, int) and isinstance(made.index, int)):
        raise TypeError("a card of another shape")
    if data["sharing"] not in {"exclusive", "replicas", "memory", "mig"}:
        raise ValueError("an unknown kind of sharing")
    resource, limits = str(data["resource"]), data.get("terms")
    former, names = tuple(map(str, data["past"])), tuple(map(str, data.get("names", [resource])))
    return AllocationRecord(made, resource, data["sharing"], former, None if limits is None else str(limits), names)
