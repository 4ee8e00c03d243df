"""Counts calls that hang by what they work on: one network, volume or resource that hangs does not refuse the others.

A call past its deadline keeps its thread until the hook returns. New calls for the same subject are refused when too
many hang, and all new calls when the plugin has too many threads. What ends something (a DEL, an unmount) is counted
apart: it is refused only when others of its kind hang.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from nodeplug.contract.values import (
    CniRequest,
    DeviceRequest,
    DriverRequest,
    ExtenderRequest,
)

LIMIT: Final = 4
"""Overdue calls for one subject at which new ones are refused, until one of them returns."""
TOTAL: Final = 64
"""Overdue calls of a plugin, for all subjects, at which every new one is refused: each holds a thread."""
ASIDES: Final = frozenset({"inspect", "metrics", "cluster_report", "volume_stats"})
"""Hooks whose overdue calls do not count: each has one key, and no caller of a plugin needs them."""
RELEASES: Final = frozenset(
    {
        *("cni_del", "cni_gc", "device_released", "volume_unpublish", "volume_unstage", "volume_detach"),
        *("volume_delete", "volume_snapshot_delete"),
    }
)
"""Hooks that end something; a pod cannot end without them."""
BEGINNINGS: Final = frozenset({"cni_add", "volume_attach", "volume_stage", "volume_publish", "volume_create"})
"""Hooks that begin something, whose callers ask again; they are refused while the daemon lacks descriptors."""
_OF_ONE_CALL: Final = frozenset({"args", "prevresult", "runtimeconfig"})
"""Keys of a network's configuration that differ from call to call."""


@dataclass(frozen=True, slots=True)
class CallSubject:
    """What a call works on.

    Attributes:
        name: in words; empty for a hook without a request.
        config: of a network: another network may take its name.
    """

    name: str = ""
    config: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def is_same(self, other: "CallSubject") -> bool:
        """Return whether two calls work on the same."""
        return self.name == other.name and _lasting(self.config) == _lasting(other.config)


def _lasting(config: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in config.items() if str(key).lower() not in _OF_ONE_CALL}


def subject_of(request: object) -> CallSubject:
    """Return the subject of a request: its network, volume, resource or extender."""
    match request:
        case CniRequest():
            return CallSubject(f"network {request.network}", request.config)
        case DeviceRequest():
            return CallSubject(f"resource {request.resource}")
        case ExtenderRequest():
            return CallSubject(f"extender {request.claim}")
        case DriverRequest():
            names = (getattr(request, key, "") for key in ("volume_id", "volume_name", "snapshot_id", "name"))
            which = next(filter(None, names), "")
            return CallSubject(f"volume {which} of {request.driver}" if which else f"driver {request.driver}")
    return CallSubject()


class Overdue(Protocol):
    """A call whose caller was answered before the hook ended."""

    @property
    def hook(self) -> str:
        """What it calls."""

    @property
    def subject(self) -> CallSubject:
        """What it works on at present."""


class OverdueCall(Overdue, Protocol):
    """One whose time is known."""

    @property
    def seconds(self) -> float:
        """Its deadline."""

    @property
    def age(self) -> float:
        """Seconds since it began."""


def obstacle(overdue: Iterable[Overdue], hook: str, subject: CallSubject) -> str:
    """Return why a new call is refused, to follow the plugin's name; empty if it is not."""
    hanging = [one for one in overdue if one.hook not in ASIDES and (one.hook in RELEASES) == (hook in RELEASES)]
    if len(hanging) >= TOTAL:
        return f"is quarantined: {TOTAL} of its calls have not come back"
    if sum(one.subject.is_same(subject) for one in hanging) >= LIMIT:
        about = f" for {subject.name}" if subject.name else ""
        return f"is quarantined{about}: {LIMIT} of its calls{about} have not come back"
    return ""


def obstacles(overdue: Iterable[Overdue]) -> list[str]:
    """Return why new calls are refused, each reason once."""
    known = list(overdue)
    return list(dict.fromkeys(filter(None, (obstacle(known, one.hook, one.subject) for one in known))))


def missed(overdue: Iterable[OverdueCall]) -> int:
    """Return how many deadlines calls have missed; each counts once more whenever it has taken another deadline."""
    return sum(max(1, int(one.age // one.seconds)) for one in overdue if one.hook not in ASIDES)


def is_stuck(overdue: Iterable[OverdueCall], most: int, since_others: float) -> bool:
    """Return whether a plugin does not come back, so that its process has to be ended.

    Calls for some networks or volumes that hang, while those for others return, do not end the calls for the others.

    Args:
        overdue: its calls.
        most: deadlines that they may miss.
        since_others: seconds since a call returned in time that worked on something else.
    """
    hanging = [one for one in overdue if one.hook not in ASIDES]
    if missed(hanging) < most:
        return False
    if len(hanging) >= TOTAL or not all(one.subject.name for one in hanging):
        return True
    return since_others > min(one.age for one in hanging)
