"""Events as the API server takes them (events.k8s.io/v1).

Owns: their fields and limits, and which failed requests of callers are worth one.
Refuses: to send them, and to count.

Source: k8s.io/api/events/v1/types.go; pkg/apis/core/validation/events.go; kubectl, describe.go (looks for the uid).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from nodeplug.contract.values import Pod
from nodeplug.kubeapi.resources import Object

CONTROLLER: Final = "nodeplug.io/node"
_NOTE: Final = 1024
"""Bytes of a note."""
_INSTANCE: Final = 128
REASONS: Final[Mapping[str, str]] = {
    "ADD": "NetworkNotAdded",
    "mount": "VolumeNotMounted",
    "NodePublishVolume": "VolumeNotMounted",
    "Allocate": "DevicesNotAllocated",
}
"""By the verb of a caller's request that failed. Kubelet itself tells a pod's owner why Allocate was refused: it knows
the pod, and no device plugin does. Such an event of ours is about the Node."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about.

    Attributes:
        kind: Pod or Node.
        name: of it.
        namespace: of a pod.
        uid: of it; empty if it is not known.
    """

    kind: str
    name: str
    namespace: str = ""
    uid: str = ""

    @classmethod
    def of(cls, pod: Pod) -> "Subject":
        """Return a pod as a subject."""
        return cls("Pod", pod.name, pod.namespace, pod.uid)

    @property
    def home(self) -> str:
        """The namespace of its events: those of a Node are in `default`."""
        return self.namespace or "default"


@dataclass(frozen=True, slots=True)
class Happening:
    """Something that happened once or more.

    Attributes:
        subject: to whom.
        reason: one word in CamelCase.
        action: what was being done.
        note: a sentence.
    """

    subject: Subject
    reason: str
    action: str
    note: str


def event(what: Happening, node: str, at: datetime, number: str) -> Object:
    """Write an event.

    Args:
        what: has happened.
        node: where.
        at: when.
        number: makes its name unique.
    """
    subject = what.subject
    regarding = {"apiVersion": "v1", "kind": subject.kind, "name": subject.name}
    regarding |= {key: value for key, value in (("namespace", subject.namespace), ("uid", subject.uid)) if value}
    return {
        "metadata": {"name": f"{subject.name[:200]}.{number}", "namespace": subject.home},
        "eventTime": micro(at),
        "reportingController": CONTROLLER,
        "reportingInstance": node[:_INSTANCE],
        "action": what.action[:_INSTANCE] or "Serving",
        "reason": what.reason,
        "regarding": regarding,
        "note": _clipped(what.note),
        "type": "Warning",
    }


def series(count: int, at: datetime) -> Object:
    """Return the patch that says that it has happened so often, the last time then; count is at least 2."""
    return {"series": {"count": count, "lastObservedTime": micro(at)}}


def micro(at: datetime) -> str:
    """Write a time as MicroTime."""
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _clipped(note: str) -> str:
    data = note.encode()
    return note if len(data) <= _NOTE else data[: _NOTE - 3].decode(errors="ignore") + "..."
