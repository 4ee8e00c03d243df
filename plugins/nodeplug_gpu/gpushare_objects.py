"""What gpushare's extender and `kubectl inspect gpushare` read in the cluster, from what containers really hold.

Owns: the annotations of pods and the ConfigMap of unhealthy cards, as those programs expect them.
Refuses: to take a decision from them: they are a projection, never an input.

Source: AliyunContainerService/gpushare-scheduler-extender c0b6141, pkg/utils; its `unhealthy-gpu-<node>` must not have
an empty value, which it reads as card 0.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from nodeplug import NodeConfigMap
from nodeplug_gpu.config import GpuConfig, Memory
from nodeplug_gpu.holders import Container

RESOURCE: Final = "aliyun.com/gpu-mem"
NAMESPACE: Final = "kube-system"
ALLOCATION: Final = "scheduler.framework.gpushare.allocation"
_PREFIX: Final = "ALIYUN_COM_GPU_MEM_"


@dataclass(frozen=True, slots=True)
class Held:
    """What a container holds of one card.

    Attributes:
        container: who.
        minor: of the card.
        units: of the whole card.
        ids: that it holds.
    """

    container: Container
    minor: int
    units: int
    ids: frozenset[str]


def entry_of(config: GpuConfig) -> Memory | None:
    """Return the entry that gpushare's programs know, if they are to be served."""
    if not config.gpushare:
        return None
    return next((one for one in config.resources if isinstance(one, Memory) and one.resource == RESOURCE), None)


def annotations(
    held: Iterable[Held], since: Mapping[tuple[str, str], int]
) -> Mapping[tuple[str, str], tuple[Mapping[str, str], Mapping[str, str]]]:
    """Return the annotations of each pod, and those that it gets if it has none, by namespace and name.

    A pod of several containers also gets gpushare's newer annotation, which is read first: without it, `inspect` takes
    all for one card, and knows of no unit that an init container keeps. Its containers are numbered in the order of
    their names, and each has the units that none before it has: readers add them up.

    Args:
        held: by all containers of the resource.
        since: when each pod was first seen, in nanoseconds of Unix time.
    """
    pods: dict[tuple[str, str], list[Held]] = {}
    for one in held:
        pods.setdefault((one.container.namespace, one.container.pod), []).append(one)
    return {pod: _of_pod(sorted(parts, key=_order), since[pod]) for pod, parts in pods.items()}


def _order(one: Held) -> tuple[str, int]:
    return one.container.name, one.minor


def _of_pod(parts: Sequence[Held], since: int) -> tuple[Mapping[str, str], Mapping[str, str]]:
    ids: dict[int, set[str]] = {}
    for one in parts:
        ids.setdefault(one.minor, set()).update(one.ids)  # an init container's are its successor's
    most = max(ids, key=lambda minor: (len(ids[minor]), -minor))
    card = next(one.units for one in parts if one.minor == most)
    made = {
        "IDX": str(most),
        "DEV": str(card),
        "POD": str(sum(map(len, ids.values()))),
        "ASSIGNED": "true",
    }
    written = {f"{_PREFIX}{key}": value for key, value in made.items()}
    if len(parts) > 1:
        written[ALLOCATION] = json.dumps(_by_container(parts), separators=(",", ":"))
    return written, {f"{_PREFIX}ASSUME_TIME": str(since)}


def _by_container(parts: Sequence[Held]) -> Mapping[str, Mapping[str, int]]:
    names, counted = list(dict.fromkeys(one.container.name for one in parts)), set[tuple[int, str]]()
    made: dict[str, dict[str, int]] = {}
    for one in parts:
        fresh = {(one.minor, name) for name in one.ids} - counted
        counted |= fresh
        if fresh:
            made.setdefault(str(names.index(one.container.name)), {})[str(one.minor)] = len(fresh)
    return made


def unhealthy(node: str, minors: Sequence[int]) -> NodeConfigMap:
    """Return the ConfigMap of the cards that the extender is to leave out; without any, it has no key."""
    data = {"gpus": ",".join(map(str, minors))} if minors else {}
    return NodeConfigMap(namespace=NAMESPACE, name=f"unhealthy-gpu-{node}", data=data)
