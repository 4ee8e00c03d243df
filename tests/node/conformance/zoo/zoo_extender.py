"""Scheduler extenders that break what kube-scheduler relies on, one rule each."""

import time
from collections.abc import Mapping
from itertools import count
from typing import Any, ClassVar

from nodeplug import (
    Claim,
    ExtenderClaim,
    ExtenderFilter,
    ExtenderPreempt,
    ExtenderPrioritize,
    ExtenderVerdict,
    ExtenderVictims,
    Host,
    InvalidRequest,
    hookimpl,
)


class Tame:
    """Breaks nothing: even nodes are full."""

    example: ClassVar[dict[str, Any]] = {"extender": {"nodes": ["n-0", "n-1", "n-2", "n-3"]}}

    def __init__(self, config: object, host: Host) -> None:
        return

    @hookimpl
    def claims(self) -> list[Claim]:
        return [ExtenderClaim("tame")]

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        full = [name for name in request.nodes if int(name[-1]) % 2 == 0]
        return ExtenderVerdict(
            nodes=tuple(name for name in request.nodes if name not in full),
            failed={one: self.reason(one) for one in full},
        )

    def reason(self, node: str) -> str:
        return "it is even"

    @hookimpl
    def extender_prioritize(self, request: ExtenderPrioritize) -> Mapping[str, int]:
        return {name: int(name[-1]) for name in request.nodes}

    @hookimpl
    def extender_preempt(self, request: ExtenderPreempt) -> Mapping[str, ExtenderVictims]:
        return {name: ExtenderVictims(pods=victims.pods[1:]) for name, victims in request.victims.items()}


class Whole(Tame):
    """Breaks nothing either: it knows nodes by their objects alone."""

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        if None in request.nodes.values():
            raise InvalidRequest("set nodeCacheCapable: false")
        return super().extender_filter(request)


class Inventive(Tame):
    breaks = "filter-answers", "the scheduler did not ask about 'n-9'"

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        return ExtenderVerdict(nodes=("n-9",))


class Chatty(Tame):
    breaks = "reasons-are-constant-sentences", "nodes have 2"

    def reason(self, node: str) -> str:
        return f"{node} is even"


class Fickle(Tame):
    breaks = "filter-is-repeatable", "first none, then n-1, n-3 left"

    def __init__(self, config: object, host: Host) -> None:
        self._asked = count()

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        if next(self._asked) % 2:
            return ExtenderVerdict(nodes=(), failed=dict.fromkeys(request.nodes, "it was promised"))
        return super().extender_filter(request)


class Trusting(Tame):
    breaks = "any-pod-is-answered", "raised KeyError: 'labels'"

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        request.pod["metadata"]["labels"]
        return super().extender_filter(request)


class Slow(Tame):
    breaks = "five-hundred-nodes-are-filtered", "did not end within 4 s"

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        time.sleep(0.01 * len(request.nodes))
        return super().extender_filter(request)


class Excessive(Tame):
    breaks = "scores-are-taken", "returned 100 for 'n-0'; return whole numbers from 0 to 10"

    @hookimpl
    def extender_prioritize(self, request: ExtenderPrioritize) -> Mapping[str, int]:
        return dict.fromkeys(request.nodes, 100)


class Greedy(Tame):
    breaks = "victims-are-those-that-were-offered", "claims to preempt pod another"

    @hookimpl
    def extender_preempt(self, request: ExtenderPreempt) -> Mapping[str, ExtenderVictims]:
        return {name: ExtenderVictims(pods=("another",)) for name in request.victims}
