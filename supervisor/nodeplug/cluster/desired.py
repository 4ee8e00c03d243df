"""What is to be in the cluster's objects, from what plugins report and from how they are.

Owns: one value for all of it; which report wins where two name one thing, and what is left out with a sentence.
Refuses: I/O, clocks, and to know what is there already.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from nodeplug.cluster.names import (
    fault_of_config_map,
    fault_of_data,
    fault_of_key,
    fault_of_label,
    fault_of_word,
)
from nodeplug.contract.errors import clip
from nodeplug.contract.values import ClusterReport, NodeCondition, NodeConfigMap, PodReport, PodWarning

ANNOTATIONS: Final = 64 << 10
"""Bytes of all annotations of the Node; the API server takes 256 KiB, of which the cluster has its own."""
MESSAGE: Final = 1000
"""Characters of a message or note: the API server takes 1024 bytes of a note, and asks for ASCII or less of it."""
PODS: Final = 1000
"""Pods of one report; kubelet runs 110 by default."""
MAPS: Final = 8
"""ConfigMaps of one report."""
_DATA: Final = 256 << 10


@dataclass(frozen=True, slots=True)
class Desired:
    """All that is to be in the cluster's objects.

    Attributes:
        labels: of the Node.
        annotations: of the Node.
        conditions: of the Node, by type.
        pods: what concerns single pods.
        config_maps: by namespace and name.
        faults: what of the reports was left out, and why.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    conditions: Mapping[str, NodeCondition] = field(default_factory=dict)
    pods: tuple[PodReport, ...] = ()
    config_maps: Mapping[tuple[str, str], NodeConfigMap] = field(default_factory=dict)
    faults: tuple[str, ...] = ()


def joined(
    reports: Mapping[str, ClusterReport], labels: Mapping[str, str], conditions: Sequence[NodeCondition], node: str
) -> Desired:
    """Join reports to what is desired.

    Args:
        reports: by section, in the order of the configuration.
        labels: of the daemon's own.
        conditions: of the daemon's own.
        node: its name.
    """
    join = _Join(node)
    join.labels.update(labels)
    join.conditions.update({one.type: one for one in conditions})
    for section, report in reports.items():
        join.section = section
        join.take(report)
    return Desired(
        join.labels, join.annotations, join.conditions, tuple(join.pods), join.config_maps, tuple(join.faults)
    )


@dataclass(slots=True)
class _Join:
    node: str
    section: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    conditions: dict[str, NodeCondition] = field(default_factory=dict)
    pods: list[PodReport] = field(default_factory=list)
    config_maps: dict[tuple[str, str], NodeConfigMap] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    _size: int = 0

    def take(self, report: ClusterReport) -> None:
        for key, value in report.labels.items():
            if self._fits(fault_of_label(key, value) or _twice("label", key, self.labels)):
                self.labels[key] = value
        for key, value in report.annotations.items():
            if self._fits(fault_of_key(key) or _twice("annotation", key, self.annotations) or self._room(key, value)):
                self.annotations[key] = value
                self._size += len(key) + len(value.encode())
        for one in report.conditions:
            wrong = fault_of_key(one.type) or fault_of_word(one.reason)
            if self._fits(wrong or _twice("condition", one.type, self.conditions)):
                self.conditions[one.type] = NodeCondition(
                    type=one.type, reason=one.reason, message=clip(one.message, MESSAGE), status=one.status
                )
        self._fits(_many("pods", report.pods, PODS) or _many("ConfigMaps", report.config_maps, MAPS))
        self.pods += [self._pod(one) for one in report.pods[:PODS]]
        for made in report.config_maps[:MAPS]:
            place = (made.namespace, made.name)
            wrong = fault_of_config_map(*place, self.node) or _first(fault_of_data, made.data) or _large(made)
            if self._fits(wrong or _twice("ConfigMap", made.name, {name: name for _, name in self.config_maps})):
                self.config_maps[place] = made

    def _pod(self, one: PodReport) -> PodReport:
        """Return what may be written of a pod's report: annotations of other programs need no domain."""

        def kept(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
            for key, value in given.items():
                if self._fits(fault_of_key(key, domain=False) or _long(key, value)):
                    yield key, value

        warnings = tuple(PodWarning(w.reason, clip(w.note, MESSAGE)) for w in one.warnings if self._said(w))
        return PodReport(
            namespace=one.namespace,
            name=one.name,
            uid=one.uid,
            annotations=dict(kept(one.annotations)),
            defaults=dict(kept(one.defaults)),
            warnings=warnings,
        )

    def _said(self, warning: PodWarning) -> bool:
        return self._fits(fault_of_word(warning.reason))

    def _room(self, key: str, value: str) -> str:
        size = self._size + len(key) + len(value.encode())
        return f"annotation {key!r}: all of the node would have more than {ANNOTATIONS} bytes" * (size > ANNOTATIONS)

    def _fits(self, fault: str) -> bool:
        if fault:
            self.faults.append(f"plugin {self.section}: {fault}")
        return not fault


def _twice(what: str, key: str, there: Mapping[str, object]) -> str:
    return f"{what} {key!r} is reported by another section, too" if key in there else ""


def _many(what: str, given: Sequence[object], most: int) -> str:
    return f"{len(given)} {what} are reported, and the first {most} are taken" if len(given) > most else ""


def _first(check: Callable[[str], str], keys: Mapping[str, str]) -> str:
    return next(filter(None, map(check, keys)), "")


def _large(made: NodeConfigMap) -> str:
    size = sum(len(key) + len(value.encode()) for key, value in made.data.items())
    return f"ConfigMap {made.name!r} has {size} bytes, at most {_DATA} are written" if size > _DATA else ""


def _long(key: str, value: str) -> str:
    return f"annotation {key!r} of a pod is longer than {MESSAGE} characters" if len(value) > MESSAGE else ""
