"""Annotations of pods on this node, and ConfigMaps about it: what other programs look for, as it really is.

Owns: writing each when it has changed, once, and leaving alone pods of other nodes and ConfigMaps that others write.
Refuses: what they say (a plugin reports it), and to remove a pod's annotations: they go with the pod.

A plugin knows better than any other program which devices its containers have: annotations of a pod are taken from
whoever has set them to something else. A ConfigMap is not.
"""

import logging
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeplug.cluster.node_object import is_ours
from nodeplug.cluster.requests import Requests
from nodeplug.contract.errors import InvalidRequest, NotFound, PluginError
from nodeplug.contract.values import NodeConfigMap, PodReport
from nodeplug.kubeapi.refusals import FieldConflict
from nodeplug.kubeapi.resources import CONFIG_MAPS, PODS, Object

LOG: Final = logging.getLogger(__name__)
NODE_LABEL: Final = "nodeplug.io/node"
"""Of each ConfigMap that is written here: by it they are found again."""
Place = tuple[str, str]
_PAUSE: Final = 60.0
"""Seconds after which a ConfigMap that was refused is tried again."""


@dataclass(slots=True)
class PodAnnotations:
    """Annotations of pods. Event loop only.

    Attributes:
        node: the name of this node.
        written: what was written of each pod that is reported, or found to be there already.
    """

    node: str
    written: dict[tuple[str, str, str], PodReport] = field(default_factory=dict)

    def due(self, pods: Iterable[PodReport]) -> list[PodReport]:
        """Return the pods whose annotations are to be written; forget those that are no longer reported."""
        reported = {_key(one): one for one in pods if one.annotations or one.defaults}
        self.written = {key: one for key, one in self.written.items() if key in reported}
        return [one for key, one in reported.items() if not _same(one, self.written.get(key))]

    async def write(self, one: PodReport, requests: Requests) -> None:
        """Write the annotations of a pod; one that is gone, or another one by now, is left alone.

        Raises:
            PluginError: the API server refused, or cannot be asked.
        """
        try:
            found = await requests.get(PODS, one.name, one.namespace)
            if _is_meant(found, one, self.node):
                has = found["metadata"].get("annotations") or {}
                wanted = {**one.defaults, **{key: has[key] for key in one.defaults if key in has}, **one.annotations}
                if any(has.get(key) != value for key, value in wanted.items()):
                    metadata = {"name": one.name, "uid": found["metadata"]["uid"], "annotations": wanted}
                    await requests.apply(PODS, {"metadata": metadata}, one.namespace, force=True)
        except NotFound:
            pass
        except InvalidRequest as error:
            LOG.warning("pod %s/%s is not annotated: %s", one.namespace, one.name, error)
        self.written[_key(one)] = one


def _key(one: PodReport) -> tuple[str, str, str]:
    return one.namespace, one.name, one.uid


def _same(one: PodReport, other: PodReport | None) -> bool:
    return other is not None and one.annotations == other.annotations and one.defaults.keys() == other.defaults.keys()


def _is_meant(found: Object, one: PodReport, node: str) -> bool:
    return (found.get("spec") or {}).get("nodeName") == node and one.uid in {"", found["metadata"]["uid"]}


@dataclass(slots=True)
class ConfigMaps:
    """ConfigMaps about this node. Event loop only.

    Attributes:
        node: the name of this node.
        written: the data of each, by namespace and name.
        troubles: why one is not as it should be.
    """

    node: str
    written: dict[Place, Mapping[str, str]] = field(default_factory=dict)
    troubles: dict[Place, str] = field(default_factory=dict)
    _again: dict[Place, float] = field(default_factory=dict)

    async def bring(self, wanted: Mapping[Place, NodeConfigMap], requests: Requests) -> None:
        """Write those that have changed, and empty those that are no longer wanted.

        A refusal of one of them is noted, and the others are written.
        """
        gone: dict[Place, Mapping[str, str]] = {
            place: {} for place, data in self.written.items() if place not in wanted and data
        }
        self.troubles = {place: why for place, why in self.troubles.items() if place in wanted}
        for place, data in [*((place, one.data) for place, one in wanted.items()), *gone.items()]:
            if self.written.get(place) == data or time.monotonic() < self._again.get(place, 0.0):
                continue
            try:
                await self._write(place, data, requests)
            except FieldConflict as error:
                self._left(place, f"it is left to {', '.join(sorted(set(error.fields.values())))}, who has written it")
            except PluginError as error:
                self._left(place, error.message)
            else:
                self.written[place] = data
                self.troubles.pop(place, None)
                self._again.pop(place, None)

    async def _write(self, place: Place, data: Mapping[str, str], requests: Requests) -> None:
        """Write one; where there is nothing to say, none is created for it."""
        namespace, name = place
        if not data:
            try:
                found = await requests.get(CONFIG_MAPS, name, namespace)
            except NotFound:
                return
            if not is_ours(found):
                return
        metadata = {"name": name, "labels": {NODE_LABEL: self.node}}
        await requests.apply(CONFIG_MAPS, {"metadata": metadata, **({"data": data} if data else {})}, namespace)

    def _left(self, place: Place, why: str) -> None:
        if self.troubles.get(place) != why:
            LOG.warning("ConfigMap %s/%s is not written: %s", *place, why)
        self.troubles[place] = why
        self._again[place] = time.monotonic() + _PAUSE
