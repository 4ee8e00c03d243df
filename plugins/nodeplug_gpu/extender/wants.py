"""What a pod wants of a resource, container by container, in the order in which kubelet allocates.

Owns: reading a v1 Pod: limits, kinds of containers, whether it still holds anything.
Refuses: to choose cards (`model`), and pods' other resources: kube-scheduler has judged those.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from nodeplug import InvalidRequest
from nodeplug.fields import parse_quantity

Kind = Literal["app", "init", "sidecar"]
"""Of a container: app, regular init container, or restartable init container."""


@dataclass(frozen=True, slots=True)
class Want:
    """Units of one container, more than none.

    Attributes:
        kind: a regular init container leaves its units to the containers after it.
        units: its limit.
    """

    kind: Kind
    units: int


def wants_of(pod: Mapping[str, Any], resource: str) -> tuple[Want, ...]:
    """Return what a pod wants, in kubelet's order: init containers first. Containers that want nothing are left out.

    Raises:
        InvalidRequest: a limit is no quantity; the API server admits no such pod.
    """
    return tuple(one for one in _wants(pod, resource) if one.units)


def _wants(pod: Mapping[str, Any], resource: str) -> Iterator[Want]:
    spec = pod.get("spec") or {}
    for container in spec.get("initContainers") or ():
        # kubernetes 1.28 and newer: a sidecar
        kind: Kind = "sidecar" if container.get("restartPolicy") == "Always" else "init"
        yield Want(kind, _units(container, resource))
    for container in spec.get("containers") or ():
        yield Want("app", _units(container, resource))


def _units(container: Mapping[str, Any], resource: str) -> int:
    resources = container.get("resources") or {}
    # Of an extended resource the API server wants equal requests and limits; kubelet allocates by limits.
    found = (resources.get("limits") or {}).get(resource, (resources.get("requests") or {}).get(resource, "0"))
    try:
        return parse_quantity(str(found))
    except InvalidRequest:
        raise InvalidRequest(f"{str(found)[:40]!r} of {resource} is no whole number of units") from None
