"""Rules for scheduler extenders: kube-scheduler's `extender/v1`.

Owns: what a filter, scores and victims must be for a scheduler that asks about the same pod again and again.
Refuses: `bind`, which takes an API server, and timing; how long a filter takes is reported, and judged only by the
daemon's deadline for it, which is shorter than the scheduler's.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

from nodeplug.extender.codec import silent
from nodeplug.testing import scheduler as acted
from nodeplug.testing.conformance.examination import Examination
from nodeplug.testing.conformance.report import few
from nodeplug.testing.conformance.rules import rule
from nodeplug.testing.conformance.verdict import Broken, NotApplicable
from nodeplug.testing.pods import url_prefix
from nodeplug.testing.scheduler import ExtenderFailure, Filtered, Scheduler

_API: Final = "kube-scheduler, extender/v1"
_MANY: Final = 500
_REASONS: Final = 10
"""Reasons of a filter that are no sign of a text per node."""
_VERDICTS: Final = 3
_HTTP_TIMEOUT: Final = 5.0
"""kube-scheduler's default `httpTimeout` in seconds. The daemon's deadline is shorter, so that its error names the slow
plugin. The scheduler of a rule waits longer than this: on a busy machine the daemon's answer may be late."""
_T = TypeVar("_T")
_Nodes = Mapping[str, Mapping[str, Any]]


def _asked(exam: Examination, claim: str, ask: Callable[[Scheduler], _T], *, cached: bool = True) -> _T:
    prefix = url_prefix(exam.node, claim, exam.patience)

    def connected() -> _T:
        with Scheduler(prefix, node_cache_capable=cached, timeout=_HTTP_TIMEOUT + exam.patience) as scheduler:
            return ask(scheduler)

    return exam.on_host(connected)


def _pod(exam: Examination) -> Mapping[str, Any]:
    return dict(exam.subject.extender.get("pod") or acted.pod("verified"))


def _nodes(exam: Examination, more: int = 0) -> _Nodes:
    """Return the nodes of the plugin's example, or three, and so many more."""
    given = exam.subject.extender.get("nodes") or ("node-1", "node-2", "node-3")
    named = {name: acted.node(name) for name in (*given, *(f"node-{number:04}" for number in range(10, 10 + more)))}
    return {**named, **given} if isinstance(given, Mapping) else named


def _ways(exam: Examination, claim: str) -> Iterator[bool]:
    """Yield in which ways the plugin takes nodes: by name alone, and whole."""
    failures: list[str] = []
    for cached in (True, False):
        try:
            _filtered(exam, claim, _nodes(exam), cached=cached)
        except ExtenderFailure as error:
            failures.append(str(error))
        else:
            yield cached
    if len(failures) > 1:
        raise Broken(failures[0])


def _filtered(exam: Examination, claim: str, nodes: _Nodes, *, cached: bool, pod: Any = None) -> Filtered:
    asked = _pod(exam) if pod is None else pod
    return _asked(exam, claim, lambda scheduler: scheduler.filter(asked, nodes), cached=cached)


def _each(exam: Examination) -> Iterator[tuple[str, bool]]:
    """Yield each claim with each way in which it takes nodes."""
    exam.require_passed("filter-answers")
    for claim in exam.claims["extender"]:
        for cached in _ways(exam, claim):
            yield claim, cached


def filter_once(exam: Examination, claim: str) -> None:
    """Have the plugin filter its nodes by name.

    Raises:
        ExtenderFailure: it refuses.
    """
    _filtered(exam, claim, _nodes(exam), cached=True)


@rule("extender", _API, "Return an ExtenderVerdict with names of `request.nodes`.", "extender_filter")
def filter_answers(exam: Examination) -> str:
    """A filter is answered, for names of nodes alone or for whole nodes."""
    words = {True: "names alone", False: "whole nodes"}
    told = []
    for claim in exam.claims["extender"]:
        for cached in _ways(exam, claim):
            left = _filtered(exam, claim, _nodes(exam), cached=cached).nodes
            told.append(f"{claim} with {words[cached]}: {len(left)} of {len(_nodes(exam))} left")
    return ", ".join(told)


@rule(
    "extender",
    "the event of a pod counts nodes by equal texts (FitError)",
    "Give each refused node a reason of a few constant sentences, without its name or its numbers.",
    "extender_filter",
)
def reasons_are_constant_sentences(exam: Examination) -> str:
    """Every node that a filter refuses has a reason, and many nodes have few reasons."""
    seen: Counter[str] = Counter()
    for claim, cached in _each(exam):
        verdict = _filtered(exam, claim, _nodes(exam, more=40), cached=cached)
        refused = {**verdict.failed, **verdict.unresolvable}
        if silence := [name for name, reason in refused.items() if reason == silent(claim)]:
            raise Broken(f"{few(silence)} without a reason")
        reasons = Counter(refused.values())
        if len(reasons) > _REASONS:
            raise Broken(f"{len(refused)} nodes have {len(reasons)} reasons, such as {few(reasons)!r}")
        seen += reasons
    if not seen:
        raise NotApplicable("it refused no node; give it some to refuse in `example`: extender")
    return few(seen)


@rule(
    "extender",
    "the scheduler asks about a pod again and again, and binds it elsewhere",
    "Only look; reserve nothing before bind.",
    "extender_filter",
)
def filter_is_repeatable(exam: Examination) -> str:
    """The same question has the same answer."""
    for claim, cached in _each(exam):
        verdicts = [_filtered(exam, claim, _nodes(exam), cached=cached) for _ in range(_VERDICTS)]
        if changed := next((one for one in verdicts if set(one.nodes) != set(verdicts[0].nodes)), None):
            raise Broken(f"first {few(verdicts[0].nodes) or 'none'}, then {few(changed.nodes) or 'none'} left")
    return ""


@rule(
    "extender",
    "pods have the fields that their authors write, and no others",
    "Read with `.get`, and with `or {}` where the API server may send null.",
    "extender_filter",
)
def any_pod_is_answered(exam: Examination) -> str:
    """A pod without labels, resources or containers is answered, or refused with an error of the contract."""
    metadata = {key: value for key, value in _pod(exam)["metadata"].items() if key in {"name", "namespace", "uid"}}
    bare: list[Mapping[str, Any]] = [
        {"metadata": metadata, "spec": {"containers": [{"name": "a"}]}, "status": {}},
        {"metadata": {**metadata, "labels": {"a": "b"}}, "spec": {"containers": []}, "status": {}},
        {"metadata": metadata, "spec": {"containers": [{"name": "a", "resources": {"limits": {}}}]}, "status": {}},
    ]
    for claim, cached in _each(exam):
        for pod in bare:
            try:
                _filtered(exam, claim, _nodes(exam), cached=cached, pod=pod)
            except ExtenderFailure as error:
                if " raised " in str(error) and "traceback" in str(error):
                    raise Broken(str(error)) from None
    return ""


@rule("extender", f"{_API}: httpTimeout", "Look nodes up in a table; ask nobody per node.", "extender_filter")
def five_hundred_nodes_are_filtered(exam: Examination) -> str:
    """A filter of five hundred nodes ends while the scheduler waits."""
    told = []
    for claim, cached in _each(exam):
        began = time.perf_counter()
        try:
            _filtered(exam, claim, _nodes(exam, more=_MANY - len(_nodes(exam))), cached=cached)
        except ExtenderFailure as error:
            raise Broken(str(error)) from None
        told.append(f"{claim}: {(time.perf_counter() - began) * 1e3:.0f} ms")
    return ", ".join(told)


@rule(
    "extender",
    f"{_API}: MaxExtenderPriority; the scheduler ignores an answer that fails",
    "Return whole numbers from 0 to 10 by name of a node.",
    "extender_prioritize",
)
def scores_are_taken(exam: Examination) -> str:
    """Every node gets a score from 0 to 10, also when only one node is left."""
    told = []
    for claim in exam.claims["extender"]:
        for count in (1, len(_nodes(exam))):
            nodes = dict(list(_nodes(exam).items())[:count])
            scores = _scores(exam, claim, nodes)
        told.append(f"{claim}: {few(f'{one}: {score}' for one, score in scores.items())}")
    return ", ".join(told)


def _scores(exam: Examination, claim: str, nodes: _Nodes) -> Mapping[str, int]:
    failures = []
    for cached in (True, False):
        args = {"Pod": _pod(exam), "NodeNames": list(nodes) if cached else None}
        args["Nodes"] = None if cached else {"metadata": {}, "items": list(nodes.values())}
        try:
            found = _asked(exam, claim, lambda scheduler, args=args: scheduler.ask("prioritize", args))  # type: ignore[misc]
        except ExtenderFailure as error:
            failures.append(error.details or str(error))
        else:
            return {one["Host"]: one["Score"] for one in found}
    raise Broken(failures[0])


@rule(
    "extender",
    f"{_API}: a victim that is no pod of its node fails the preemption",
    "Return nodes of `request.victims`, each with some of its pods.",
    "extender_preempt",
)
def victims_are_those_that_were_offered(exam: Examination) -> str:
    """Victims are pods of nodes that the scheduler has named."""
    offered = {name: [acted.pod(f"{name}-{number}") for number in range(2)] for name in _nodes(exam)}
    told = []
    for claim in exam.claims["extender"]:
        try:
            kept = _asked(exam, claim, lambda scheduler: scheduler.preempt(_pod(exam), offered))
        except ExtenderFailure as error:
            raise Broken(error.details or str(error)) from None
        told.append(f"{claim}: {sum(map(len, kept.values()))} of {2 * len(offered)} on {len(kept)} nodes")
    return ", ".join(told)
