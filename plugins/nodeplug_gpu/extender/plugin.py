"""The plugin itself: kube-scheduler's questions, answered from what nodes say of their cards and what is under way.

Owns: the verdicts and their sentences, what is remembered between calls, and the thread that looks after pods.
Refuses: to choose a node, which is the scheduler's, and to reserve anything before `bind`.
"""

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final

from nodeplug import (
    Claim,
    Example,
    ExtenderBind,
    ExtenderClaim,
    ExtenderFilter,
    ExtenderPreempt,
    ExtenderPrioritize,
    ExtenderVerdict,
    ExtenderVictims,
    Host,
    NotFound,
    NotReady,
    PluginError,
    TryAgain,
    Uncertain,
    hookimpl,
)
from nodeplug_gpu.extender.assumptions import Assumed, Assumptions, Outcome, UnderWay
from nodeplug_gpu.extender.config import ExtenderConfig
from nodeplug_gpu.extender.model import NodeModel, worst
from nodeplug_gpu.extender.nodes import Nodes, Published
from nodeplug_gpu.extender.pods import bound_at, is_finished, node_of, uid_of
from nodeplug_gpu.extender.turns import Turns
from nodeplug_gpu.extender.victims import frees
from nodeplug_gpu.extender.wants import Want, wants_of
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, Unreadable, annotation_of, encode
from nodeplug_gpu.ids import CardKey

_LATE: Final = 5.0
"""Seconds after which a node should have named a pod that was bound to it."""
_UNTOLD: Final = 12.0
"""Seconds after which no node counts units any more of a pod that it has not named and that has ended."""
_OUTCOMES: Final = 64
"""Of pods on their way to a node, at most: nearly always there is one."""
_REMEMBERED: Final = 10_000
"""Pods between filter and bind."""
_EXAMPLE: Final = FreeMemory(
    "aliyun.com/gpu-mem", 1, 1 << 30, "binpack", (FreeCard("8a5e0c11", "GPU-8a5e", 0, 24, 20),)
)


class GpuExtender:
    """A scheduler extender that knows the cards of nodes."""

    Config = ExtenderConfig
    isolation = "thread"
    example: ClassVar[Example] = {
        "extender": {
            "pod": {
                "metadata": {"name": "train", "namespace": "default", "uid": "c0ffee"},
                "spec": {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": "16"}}}]},
            },
            "nodes": {
                "node-1": {
                    "metadata": {"name": "node-1", "annotations": {annotation_of(_EXAMPLE.resource): encode(_EXAMPLE)}}
                },
                "node-2": {"metadata": {"name": "node-2"}},
            },
        }
    }

    def __init__(self, config: ExtenderConfig, host: Host, clock: Callable[[], float] = time.monotonic) -> None:
        self._config, self._host, self._clock = config, host, clock
        self._nodes, self._assumptions = Nodes(config.resource, clock), Assumptions()
        self._wanted: dict[str, Sequence[Want]] = {}
        self._bound: Collection[str] | None = None
        self._turns = Turns()
        self._counting = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._trouble = ""
        self._absent = f"it publishes no free {config.resource} by card"
        self._unreadable = f"what it publishes of free {config.resource} cannot be read"
        self._full = f"no single card has enough free {config.resource}"
        self._small = f"no card is large enough for the {config.resource} of a container"

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Claim the path of the extender."""
        return [ExtenderClaim(self._config.extender)]

    @hookimpl
    def start(self) -> None:
        """Look after pods under way. May be called again after `stop`."""
        self._ended = threading.Event()
        self._thread = threading.Thread(
            target=self._look_after, args=(self._ended,), name="gpu-extender:look", daemon=True
        )
        self._thread.start()

    @hookimpl
    def stop(self) -> None:
        """End the thread."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(2)

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        """Report what is known."""
        return {"nodes": len(self._nodes), "pods_under_way": self._assumptions.unnamed, "api_server": self._trouble}

    # --- kube-scheduler's questions

    @hookimpl
    def extender_filter(self, request: ExtenderFilter) -> ExtenderVerdict:
        """Leave the nodes on which each container of the pod gets its units of one card.

        Raises:
            NotReady: the scheduler sends names of nodes alone, and nobody follows them.
            TryAgain: they have not been listed yet.
        """
        wants = self._wants(request.pod)
        if not wants:
            return ExtenderVerdict(nodes=tuple(request.nodes))
        self._learn()
        left, failed, unresolvable = [], {}, {}
        for name, node in request.nodes.items():
            try:
                models = self._models(name, node, uid_of(request.pod))
            except Unreadable:
                unresolvable[name] = self._unreadable
                continue
            verdict = worst(model.judge(wants) for model in models)
            if verdict == "fits":
                left.append(name)
            elif verdict == "full":
                failed[name] = self._full
            else:
                unresolvable[name] = self._small if verdict else self._absent
        return ExtenderVerdict(nodes=tuple(left), failed=failed, unresolvable=unresolvable)

    @hookimpl
    def extender_prioritize(self, request: ExtenderPrioritize) -> Mapping[str, int]:
        """Score nodes by the card that the pod would get."""
        wants, scores = self._wants(request.pod), {}
        for name, node in request.nodes.items() if wants else ():
            try:
                models = self._models(name, node, uid_of(request.pod))
            except Unreadable:
                continue
            scores[name] = min((model.score(wants, self._config.score) for model in models), default=0)
        return scores

    @hookimpl
    def extender_preempt(self, request: ExtenderPreempt) -> Mapping[str, ExtenderVictims]:
        """Keep the nodes on which a card fits once the victims are gone.

        The victims stay as they are: the scheduler names no more than it needs for what it counts itself.
        """
        wants = self._wants(request.pod)
        if not wants:
            return request.victims
        self._learn()
        kept = {}
        for name, victims in request.victims.items():
            published = self._followed(name)
            held = _frees(published, victims) if published is not None else None
            if published is None or held is None:
                continue
            if all(model.without(held).place(wants) is not None for model in self._now(name, published, victims.pods)):
                kept[name] = victims
        return kept

    @hookimpl
    def extender_bind(self, request: ExtenderBind) -> None:
        """Bind a pod, if it still fits: from now on its units count as taken.

        Raises:
            NotReady: nobody follows the cluster.
            TryAgain: another pod has come first.
            PluginError: the API server refuses.
        """
        with self._turns.of(request.node):  # kubelet must meet pods in the order in which they were judged
            self._count(self._host.scheduling.bound())
            self._assume(request)
            try:
                self._host.scheduling.bind(request.namespace, request.pod, request.uid, request.node)
            except Uncertain:
                raise  # it counts until the pod can be read again
            except BaseException:
                self._assumptions.forget(request.uid)
                raise

    # --- what is known

    def _assume(self, request: ExtenderBind) -> None:
        wants = self._wanted.get(request.uid)
        if wants is None:  # it was filtered before this instance began
            pod = self._host.scheduling.pod(request.namespace, request.pod)
            if pod is None or uid_of(pod) != request.uid:
                raise NotFound(f"pod {request.namespace}/{request.pod} with UID {request.uid} is gone")
            wants = wants_of(pod, self._config.resource)
        if not wants:
            return
        published = self._followed(request.node)
        if published is None:
            raise TryAgain(f"node {request.node}: {self._absent}")
        outcomes = self._outcomes(request.node, published, request.uid, wants)
        made = Assumed(
            *(request.uid, request.namespace, request.pod, request.node, wants, self._clock()),
            placed=True,
            before=published.seq,
        )
        self._assumptions.assume(made, published, outcomes)

    def _outcomes(self, node: str, published: Published, uid: str, wants: Sequence[Want]) -> Sequence[Outcome]:
        """Return what may become of the pods of a node with a further one, which finds its cards whatever that is.

        Raises:
            TryAgain: perhaps it does not.
        """
        found: dict[Outcome, None] = {}
        former = self._nodes.former(node)
        self._settle(node, published, forget=not former)
        saying = [(published, self._under_way(node, published, [uid]))]
        saying += [(said, self._under_way(node, said, [uid], former=True)) for said in former]
        for said, under_way in saying:
            for outcome in under_way.outcomes:
                model = NodeModel.of(said, under_way.strangers, under_way.takes(outcome))
                placed = model.place(wants)
                if placed is None:
                    why = "another pod has come first" if said is published else "by what it said a moment ago"
                    raise TryAgain(f"node {node}: {self._full}: {why}")
                found[outcome | {(uid, frozenset(model.takes(placed).items()))}] = None
        if len(found) > _OUTCOMES:
            raise TryAgain(f"node {node}: it has not said yet on which cards pods are that were bound a moment ago")
        return tuple(found)

    def _settle(self, node: str, published: Published, *, forget: bool) -> None:
        """Leave out of what may become of pods what the node has said to be otherwise."""
        self._under_way(node, published, ())
        if not (named := self._assumptions.named(node, published)):
            return
        try:
            whole = published.whole
        except Unreadable:  # what pods hold is read by this alone
            return
        held = dict(zip(whole.pods, whole.held, strict=False))
        taken = {
            pod.uid: {CardKey(card): units for card, units in has.items()}
            for pod in named
            for name, has in held.items()
            if name.means(pod.namespace, pod.name, pod.uid)
        }
        gone = {pod.uid: dict[CardKey, int]() for pod in named} if forget else {}
        self._assumptions.settle(node, {**gone, **taken}, forget=forget)

    def _wants(self, pod: Mapping[str, Any]) -> Sequence[Want]:
        wants, uid = wants_of(pod, self._config.resource), uid_of(pod)
        if uid:
            if len(self._wanted) >= _REMEMBERED:
                self._wanted.clear()
            self._wanted[uid] = wants
        return wants

    def _models(self, name: str, node: Mapping[str, Any] | None, uid: str) -> Sequence[NodeModel]:
        if node is None:
            node = self._host.scheduling.node(name)  # nobody knows it, or nobody follows nodes, which it says
        published = self._nodes.read(name, node) if node is not None else None
        return self._now(name, published, [uid]) if published is not None else ()

    def _now(self, name: str, published: Published, but: Collection[str]) -> Sequence[NodeModel]:
        """Return the models of a node as it may be, without some pods that are on their way to it."""
        if name not in self._assumptions:
            return (NodeModel(published, published.free),)
        under_way = self._under_way(name, published, but)
        taken = {frozenset(takes.items()): takes for takes in map(under_way.takes, under_way.outcomes)}
        return [NodeModel.of(published, under_way.strangers, takes) for takes in taken.values()]

    def _under_way(self, name: str, said: Published, but: Collection[str], *, former: bool = False) -> UnderWay:
        return self._assumptions.under_way(name, said, self._clock(), but, former=former, waiting=self._bound)

    def _followed(self, name: str) -> Published | None:
        """Return what a node says now; None if it says nothing that can be read."""
        try:
            node = self._host.scheduling.node(name)
        except NotReady:  # nobody follows nodes: what it said when the scheduler last asked about it
            return self._nodes.last(name)
        try:
            return self._nodes.read(name, node) if node is not None else None
        except Unreadable:
            return None

    def _learn(self) -> None:
        """Count pods as under way that others have bound, where somebody follows them."""
        with suppress(NotReady):
            self._count(self._host.scheduling.bound())

    def _count(self, bound: Sequence[Mapping[str, Any]]) -> None:
        """Count pods as under way that others have bound, or this one before it was started again.

        A node that names a pod of which nobody knew before means its predecessor, which had the same name: the node
        is slower than the watch. At the first time it means the very pod.
        """
        with self._counting:
            pods, known = {uid_of(one): one for one in bound}, self._bound
            fresh = [pod for uid, pod in pods.items() if uid not in (known or ())]
            for pod in sorted(fresh, key=bound_at):
                if wants := wants_of(pod, self._config.resource):
                    metadata, name = pod["metadata"], node_of(pod)
                    found = Assumed(uid_of(pod), metadata["namespace"], metadata["name"], name, wants, self._clock())
                    self._assumptions.assume(found, self._followed(name) if known is not None else None)
            self._bound = pods.keys()

    # --- the thread that looks after pods under way -------------------------------------------------------------

    def _look_after(self, ended: threading.Event) -> None:
        while not ended.wait(self._config.look):
            try:
                self._look()
                self._trouble = ""
            except PluginError as error:
                if self._trouble != error.message:
                    self._host.log.warning("pods under way cannot be looked after: %s", error.message)
                self._trouble = error.message
            except Exception:
                self._host.log.exception("pods under way could not be looked after; it is tried again")

    def _look(self) -> None:
        """Forget pods that will never be named by their node."""
        self._learn()
        for one in self._assumptions.waiting(now := self._clock(), _LATE):
            current = self._host.scheduling.pod(one.namespace, one.name)
            ended = current is None or uid_of(current) != one.uid or is_finished(current)
            bound = ended or (current is not None and node_of(current) == one.node)
            if not bound or (ended and (not one.placed or now - one.since > _UNTOLD)):
                self._assumptions.forget(one.uid)


def _frees(published: Published, victims: ExtenderVictims) -> Sequence[Mapping[CardKey, int]] | None:
    try:
        return frees(published.whole, victims.objects)
    except Unreadable:  # what pods hold is read by this alone
        return None
