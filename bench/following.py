"""The extender that knows the cards, in a cluster of 5,000 nodes that it follows: time of a call, and memory.

Owns: the nodes, of 8 cards and 30 pods each, at an API server that is acted out; the calls, as kube-scheduler makes
them with names alone; and how long what a node says anew takes to be in an answer.
Refuses: a real API server, whose own time is not what is measured.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from tests.node.acted_api import ActedApi

from bench.figures import flat
from bench.measure import Summary
from nodeplug.observe.processes import usage
from nodeplug.testing import Scheduler, ScratchNode, folders
from nodeplug.testing.pods import url_prefix
from nodeplug.testing.scheduler import node as v1_node
from nodeplug.testing.scheduler import pod as v1_pod
from nodeplug.testing.waiting import until
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName, annotation_of, encode

MEM: Final = "aliyun.com/gpu-mem"
_CARDS, _UNITS, _PODS = 8, 80, 30
_MIB: Final = 1 << 20
NODES: Final = 5000
"""As many as Kubernetes supports."""
ASKED: Final = 500
"""Of so many, kube-scheduler looks at this part (percentageOfNodesToScore)."""
_FILLER: Final = {f"example.com/label-{number:02}": "a value as long as many are" for number in range(40)}
"""With the annotation and what kubelet says, about 12 KB."""
_IMAGES: Final = [
    {"names": [f"registry.example.com/team/image-{number}@sha256:{number:064x}"], "sizeBytes": 1 << 28}
    for number in range(50)
]
_CONFIG: Final = '[extender]\nlisten = "127.0.0.1:0"\nfollow = true\nkubeconfig = "{}"\n[plugins.gpu-extender]\n'


def measure(nodes: int, asked: int, calls: int) -> Mapping[str, float]:
    """Start an API server and a daemon that follows it, and ask.

    Args:
        nodes: of the cluster.
        asked: of which a call names so many.
        calls: of each verb.

    Returns:
        Figures by name: milliseconds, MiB and seconds.
    """
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    names = [f"node-{number:04}.example.com" for number in range(nodes)]
    try:
        with ActedApi() as api:
            for name in names:
                put(api, name, 0)
            (folder / "kubeconfig").write_text(api.kubeconfig)
            with ScratchNode(folder, _CONFIG.format(folder / "kubeconfig")) as daemon:
                until(lambda: daemon.status()["extender"]["cluster"]["pods_bound"] is not None)
                until(lambda: daemon.status()["extender"]["cluster"]["nodes"] == nodes, 300)
                with Scheduler(url_prefix(daemon, "gpu-mem"), timeout=60) as scheduler:
                    figures = _asked(api, scheduler, names[:asked], calls)
                    _all(scheduler, names)
                return {**figures, "memory_mib": usage([daemon.pid])[daemon.pid].memory / _MIB}
    finally:
        folders.remove(folder)


def put(api: ActedApi, name: str, seq: int) -> None:
    """Let a node say what is free: one card has more than all others, by its number and `seq`."""
    number = int(name[5:9])
    free = [(number * 7 + index * 11 + seq) % (_UNITS // 2) for index in range(_CARDS)]
    cards = tuple(FreeCard(f"{at:08x}", f"GPU-{number}-{at}", at, _UNITS, free[at]) for at in range(_CARDS))
    pods = tuple(PodName("default", f"training-{number}-{index}-5f7d8c9b-x2k4q") for index in range(_PODS))
    held = tuple({f"{index % _CARDS:08x}": 10} for index in range(_PODS))
    said = encode(FreeMemory(MEM, seq + 1, 1 << 30, "binpack", cards, pods, held))
    made = v1_node(name, **{MEM: str(_CARDS * _UNITS)})
    metadata = {**made["metadata"], "labels": _FILLER, "annotations": {annotation_of(MEM): said}}
    api.put("v1", "nodes", name, metadata=metadata, status={**made["status"], "images": _IMAGES})


def _asked(api: ActedApi, scheduler: Scheduler, names: list[str], calls: int) -> dict[str, float]:
    pods = (_wanting(f"pod-{number}", 30) for number in range(1_000_000))
    figures: dict[str, float] = {}
    figures |= flat("filter", _timed(calls, lambda: scheduler.filter(next(pods), names)))
    figures |= flat("prioritize", _timed(calls, lambda: scheduler.prioritize(next(pods), names)))
    started = time.perf_counter()
    for _ in range(calls):
        scheduler.filter(next(pods), names)
    figures["ms_per_pod"] = (time.perf_counter() - started) / calls * 1e3
    changes = iter(range(1, 1_000_000))

    def after_changes() -> None:
        for name in names[:20]:
            put(api, name, next(changes))

    figures |= flat("filter_changing", _timed(calls, lambda: scheduler.filter(next(pods), names), after_changes))
    figures["seen_ms"] = _seen(api, scheduler, names[0])
    return figures


def _timed(calls: int, once: Callable[[], object], before: Callable[[], object] = lambda: None) -> Summary:
    once()  # the first one reads every annotation
    seconds = []
    for _ in range(calls):
        before()
        started = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - started)
    return Summary.of(seconds)


def _seen(api: ActedApi, scheduler: Scheduler, name: str) -> float:
    """Return the longest of ten times, in milliseconds, from a node's word to an answer that has it."""
    longest = 0.0
    for turn in range(10):
        more = turn % 2 == 0
        card = FreeCard("00000000", "GPU-0", 0, _UNITS, _UNITS if more else 0)
        said = encode(FreeMemory(MEM, 1_000_000 + turn, 1 << 30, "binpack", (card,)))
        started = time.perf_counter()
        api.put("v1", "nodes", name, metadata={"annotations": {annotation_of(MEM): said}})
        while bool(scheduler.filter(_wanting("seen", _UNITS), [name]).nodes) != more:
            pass
        longest = max(longest, time.perf_counter() - started)
    return longest * 1e3


def _all(scheduler: Scheduler, names: list[str]) -> None:
    """Ask about every node once, so that every annotation is read."""
    for begin in range(0, len(names), 500):
        scheduler.filter(_wanting("all", 30), names[begin : begin + 500])


def _wanting(name: str, units: int) -> dict[str, Any]:
    return v1_pod(name, containers=[{"name": "c", "resources": {"limits": {MEM: str(units)}}}])
