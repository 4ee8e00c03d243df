"""What a claim has been given, on disk: one record per claim, written before its plugin is asked.

Owns: the record and its form in the journal.
Refuses: to choose (`ledger`), and to be read by anybody but this front.

The record is the truth: kubelet knows a claim's UID alone when it unprepares, the object may be gone by then, and the
slices say nothing of what is taken.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.journal import Entry
from nodeplug.contract.values import Counters, DeviceId, DeviceMount, DeviceNode, Grant, ResourceClaim, ResourceName
from nodeplug.dra.claims import ClaimReference
from nodeplug.dra.values import Share

Phase = Literal["preparing", "prepared", "released"]
"""`released`: kubelet was told that the claim is unprepared, and the plugin has not heard of it."""
_PHASES: Final = ("preparing", "prepared", "released")


@dataclass(frozen=True, slots=True)
class Held:
    """One share, and the ids that it has got.

    Attributes:
        counters: what its device consumed when it got them; the list says what it consumes now, while it is in there.
    """

    share: Share
    resource: ResourceName
    ids: tuple[DeviceId, ...]
    counters: Counters | None = None


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """One claim that was prepared, or is about to be.

    Attributes:
        claim: which.
        section: whose driver has it.
        phase: how far it got.
        held: its shares.
        grants: by request, once the plugin has granted.
    """

    claim: ClaimReference
    section: str
    phase: Phase
    held: tuple[Held, ...]
    grants: Mapping[str, Grant] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Its key in the journal: a claim may have devices of several drivers."""
        return key_of(self.section, self.claim.uid)

    def to(self, phase: Phase, grants: Mapping[str, Grant] | None = None) -> "ClaimRecord":
        """Return it in another phase."""
        return replace(self, phase=phase, grants=self.grants if grants is None else grants)

    def claim_for(self, request: str) -> ResourceClaim:
        """Return what a plugin is told of it."""
        return ResourceClaim(
            uid=self.claim.uid,
            namespace=self.claim.namespace,
            name=self.claim.name,
            request=request,
            admin_access=any(one.share.admin for one in self.held if one.share.request == request),
        )

    @property
    def data(self) -> dict[str, Any]:
        """Return it as JSON has it."""
        return {
            "section": self.section,
            "claim": asdict(self.claim),
            "held": [_written(one) for one in self.held],
            "grants": {request: asdict(grant) for request, grant in self.grants.items()},
        }


def key_of(section: str, uid: str) -> str:
    """Return the key of a record."""
    return f"{section} {uid}"


def sections_of(folder: Path) -> set[str]:
    """Return the sections that have records; nothing is touched: another daemon may be writing them. May block."""
    found = set()
    for path in folder.glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            found.add(str(json.loads(read_bounded(path))["data"]["section"]))
    return found


def read_record(entry: Entry) -> ClaimRecord:
    """Read a record; raise ValueError if it has another form."""
    data = entry.data
    try:
        if entry.phase not in _PHASES:
            raise ValueError(f"phase {entry.phase!r}")
        return ClaimRecord(
            ClaimReference(**_known(ClaimReference, data["claim"])),
            str(data["section"]),
            cast("Phase", entry.phase),
            tuple(
                Held(
                    Share(**_known(Share, one["share"])),
                    ResourceName(one["resource"]),
                    tuple(map(DeviceId, one["ids"])),
                    Counters(**_known(Counters, one["counters"])) if one.get("counters") else None,
                )
                for one in data["held"]
            ),
            {request: _grant(grant) for request, grant in data["grants"].items()},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from None


def _written(one: Held) -> dict[str, Any]:
    made = {"share": asdict(one.share), "resource": one.resource, "ids": list(one.ids)}
    if (counters := one.counters) is None:
        return made
    said = {"available": dict(counters.available), "consumed": dict(counters.consumed)}
    return {**made, "counters": {"of": counters.of, **said}}


def _known(kind: type[Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this version knows of a value: a later one may have written more."""
    return {one.name: data[one.name] for one in fields(kind) if one.name in data}


def _grant(data: Mapping[str, Any]) -> Grant:
    return Grant(
        env=dict(data["env"]),
        nodes=tuple(
            DeviceNode(one["host_path"], one["container_path"], permissions=one["permissions"]) for one in data["nodes"]
        ),
        mounts=tuple(
            DeviceMount(one["host_path"], one["container_path"], read_only=bool(one["read_only"]))
            for one in data["mounts"]
        ),
        annotations=dict(data["annotations"]),
        cdi=tuple(map(str, data["cdi"])),
    )
