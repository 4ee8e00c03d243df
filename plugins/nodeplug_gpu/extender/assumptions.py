"""Pods that are under way to a node: bound, or about to be, and not yet in what the node says.

Owns: from when to when a pod counts as under way, in the order in which they were bound, and what each of them may take
as long as its node has not said so. Any thread may ask.
Refuses: I/O, and to know what a node says: callers bring its annotation.
"""

import threading
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from nodeplug_gpu.extender.wants import Want
from nodeplug_gpu.ids import CardKey

SETTLED: Final = 60.0
"""Seconds after which nobody has an annotation any more that is older than one that named the pod."""
REPLACED: Final = 15.0
"""Seconds in which a node notices that a pod was replaced by one of its name; podresources is read every 10."""
_NO_SEQ: Final = -1


class Says(Protocol):
    """What a node says, whole or not."""

    @property
    def seq(self) -> int:
        """As in `FreeMemory`."""

    def names(self, namespace: str, name: str, uid: str = "") -> bool:
        """As in `FreeMemory`."""


@dataclass(slots=True)
class Assumed:
    """A pod on its way.

    Attributes:
        uid: of the pod.
        namespace: of the pod.
        name: of the pod.
        node: to which it goes.
        wants: of its containers.
        since: when it was assumed.
        placed: whether its cards were judged when it was bound; `Assumptions.outcomes` has them.
        former: number of the annotation that named a pod of this name when this one was assumed: its predecessor,
            whose units are not free yet. -1 without one.
        before: number of the annotation by which it was placed.
        doubted: whether it may have come and gone without being named.
        shown: number of the first annotation that is known to name this pod; -1 while there is none.
    """

    uid: str
    namespace: str
    name: str
    node: str
    wants: Sequence[Want]
    since: float
    placed: bool = False
    before: int = _NO_SEQ
    doubted: bool = False
    former: int = _NO_SEQ
    shown: int = _NO_SEQ

    def see(self, published: Says, now: float) -> bool:
        """Take note of an annotation of its node; return whether its units are in the figures, or were and are free."""
        named = published.names(self.namespace, self.name, self.uid)
        if self.shown == _NO_SEQ:
            if not named:
                self.former = _NO_SEQ
            elif self.former == _NO_SEQ or now - self.since > REPLACED:
                # Its number may be the former one: where the successor has the same units, there is no news.
                self.shown = published.seq
        # What names it is later than that, also where the numbers are lower: the node's clock may have been set back.
        return self.shown != _NO_SEQ and (named or published.seq >= self.shown)

    def was_in(self, former: Says) -> bool:
        """Return whether its units are in figures that were followed by others, which `see` knows."""
        return self.shown != _NO_SEQ and former.seq >= self.shown


Outcome = frozenset[tuple[str, frozenset[tuple[CardKey, int]]]]
"""What pods on their way to a node take: their UIDs, each with the units of each card."""
_NOTHING: Final[tuple[Outcome, ...]] = (frozenset(),)


@dataclass(frozen=True, slots=True)
class UnderWay:
    """What is on its way to a node, as it counts beside some figures of it.

    Attributes:
        strangers: what each pod wants that others have bound, in the order in which they were bound.
        placed: UIDs of the pods whose cards were judged.
        outcomes: what may become of those, at least one; others may be in there too.
    """

    strangers: Sequence[Sequence[Want]]
    placed: Collection[str]
    outcomes: Sequence[Outcome]

    def takes(self, outcome: Outcome) -> Mapping[CardKey, int]:
        """Return the units by card that they take if it comes to this."""
        found = Counter[CardKey]()
        for uid, units in outcome:
            if uid in self.placed:
                for card, count in units:
                    found[card] += count
        return found


class Assumptions:
    """All pods that are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, dict[str, Assumed]] = {}
        self._node_of: dict[str, str] = {}
        self._outcomes: dict[str, tuple[Outcome, ...]] = {}

    def assume(self, pod: Assumed, published: Says | None, outcomes: Sequence[Outcome] = ()) -> None:
        """Count a pod as under way from now on; one that is known keeps its place.

        Args:
            pod: which.
            published: the last annotation of its node; None if it is not known.
            outcomes: what may become of the pods of its node, of this one too; as they were if it is not placed.
        """
        with self._lock:
            if self._node_of.get(pod.uid) == pod.node:
                return
            if published is not None and published.names(pod.namespace, pod.name):
                pod.former = published.seq
            self._forget(pod.uid)
            self._nodes.setdefault(pod.node, {})[pod.uid] = pod
            self._node_of[pod.uid] = pod.node
            if pod.placed:
                self._outcomes[pod.node] = tuple(outcomes)

    def forget(self, uid: str) -> None:
        """Count a pod no longer: it was not bound, or is gone."""
        with self._lock:
            self._forget(uid)

    def under_way(
        self,
        node: str,
        published: Says,
        now: float,
        but: Collection[str] = (),
        *,
        former: bool = False,
        waiting: Collection[str] | None = None,
    ) -> UnderWay:
        """Return what is on its way to a node and not in what it says.

        Args:
            node: its name.
            published: its last annotation; or one before that, of which it has been asked already, as `former` tells.
            now: by the clock of `Assumed.since`.
            but: UIDs of pods that do not count.
            former: `published` is not the last one.
            waiting: UIDs of all pods that are bound and have not begun, if they are known: another one may have ended.
        """
        with self._lock:
            here = self._nodes.get(node, {}).values()
            left = [one for one in here if not (one.was_in(published) if former else one.see(published, now))]
            if waiting is not None and not former:
                self._doubt(node, [one for one in left if one.uid not in waiting and one.before != published.seq])
            left = [one for one in left if one.uid not in but]
            outcomes = self._outcomes.get(node, _NOTHING)
        strangers = [one.wants for one in left if not one.placed]
        return UnderWay(strangers, frozenset(one.uid for one in left if one.placed), outcomes)

    def named(self, node: str, published: Says) -> Sequence[Assumed]:
        """Return the pods whose cards were judged and whose units are in the last annotation, as `under_way` knows."""
        with self._lock:
            here = self._nodes.get(node, {}).values()
            return [one for one in here if one.placed and one.was_in(published)]

    def settle(self, node: str, taken: Mapping[str, Mapping[CardKey, int]], *, forget: bool) -> None:
        """Leave out what has not come about.

        Args:
            node: its name.
            taken: what pods have taken, by what the node says.
            forget: nobody goes by figures any more in which these pods are not.
        """
        with self._lock:
            if node not in self._outcomes:
                return
            known, true = self._outcomes[node], Outcome((uid, frozenset(has.items())) for uid, has in taken.items())
            come = [one for one in known if all(said in true for said in one if said[0] in taken)] or known
            rest = [frozenset(said for said in one if said[0] not in taken) for one in come]
            self._outcomes[node] = _distinct(rest if forget else (one | true for one in rest))

    def waiting(self, now: float, longer: float) -> Sequence[Assumed]:
        """Return the pods that no annotation has named for a while; forget those that one named long ago."""
        with self._lock:
            known = [one for here in self._nodes.values() for one in here.values()]
            for one in known:
                if one.shown != _NO_SEQ and now - one.since > SETTLED:
                    self._forget(one.uid)
            return [one for one in known if one.shown == _NO_SEQ and now - one.since > longer]

    @property
    def unnamed(self) -> int:
        """How many no annotation has named yet, as far as anybody has asked."""
        with self._lock:
            return sum(one.shown == _NO_SEQ for here in self._nodes.values() for one in here.values())

    def __contains__(self, node: object) -> bool:
        """Whether a pod is, or was just now, under way to a node."""
        return node in self._nodes

    def __len__(self) -> int:
        """Return how many are remembered, those of the last minute among them that their node has named."""
        with self._lock:
            return len(self._node_of)

    def _doubt(self, node: str, pods: Iterable[Assumed]) -> None:
        """Reckon with the end of pods which have begun, and which their node has not named since they were placed."""
        for pod in pods:
            if pod.placed and not pod.doubted:
                pod.doubted = True
                outcomes = self._outcomes[node]
                self._outcomes[node] = _distinct((*outcomes, *_without(pod.uid, outcomes)))

    def _forget(self, uid: str) -> None:
        node = self._node_of.pop(uid, None)
        if node is not None:
            del self._nodes[node][uid]
            if not self._nodes[node]:
                del self._nodes[node]
                self._outcomes.pop(node, None)
            elif node in self._outcomes:
                self._outcomes[node] = _distinct(_without(uid, self._outcomes[node]))


def _without(uid: str, outcomes: Iterable[Outcome]) -> Iterable[Outcome]:
    return (frozenset(said for said in one if said[0] != uid) for one in outcomes)


def _distinct(outcomes: Iterable[Outcome]) -> tuple[Outcome, ...]:
    return tuple(dict.fromkeys(outcomes))
