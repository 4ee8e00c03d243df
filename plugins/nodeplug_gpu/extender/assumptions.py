"""Pods that are under way to a node: bound, or about to be, and not yet in what the node says.

Owns: from when to when a pod counts as under way, in the order in which they were bound. Any thread may ask.
Refuses: I/O, and to know what a node says: callers bring its annotation.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
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
        taken: units by card that it will get, as it was judged when it was bound; empty if others have bound it.
        former: number of the annotation that named a pod of this name when this one was assumed: its predecessor,
            whose units are not free yet. -1 without one.
        shown: number of the first annotation that is known to name this pod; -1 while there is none.
    """

    uid: str
    namespace: str
    name: str
    node: str
    wants: Sequence[Want]
    since: float
    taken: Mapping[CardKey, int] = field(default_factory=dict)
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


class Assumptions:
    """All pods that are under way."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nodes: dict[str, dict[str, Assumed]] = {}
        self._node_of: dict[str, str] = {}

    def assume(self, pod: Assumed, published: Says | None) -> None:
        """Count a pod as under way from now on; one that is known keeps its place.

        Args:
            pod: which.
            published: the last annotation of its node; None if it is not known.
        """
        with self._lock:
            if self._node_of.get(pod.uid) == pod.node:
                return
            if published is not None and published.names(pod.namespace, pod.name):
                pod.former = published.seq
            self._forget(pod.uid)
            self._nodes.setdefault(pod.node, {})[pod.uid] = pod
            self._node_of[pod.uid] = pod.node

    def forget(self, uid: str) -> None:
        """Count a pod no longer: it was not bound, or is gone."""
        with self._lock:
            self._forget(uid)

    def under_way(self, node: str, published: Says, now: float, but: Collection[str] = ()) -> Sequence[Sequence[Want]]:
        """Return what each pod wants that goes to a node and is not in an annotation, in the order of their binding.

        Not of those whose cards are known: `taken` has them.

        Args:
            node: its name.
            published: an annotation of the node.
            now: by the clock of `Assumed.since`.
            but: UIDs of pods that do not count.
        """
        with self._lock:
            here = self._nodes.get(node, {}).values()
            return [one.wants for one in here if not one.see(published, now) and one.uid not in but and not one.taken]

    def taken(self, node: str, published: Says, now: float, but: Collection[str] = ()) -> Mapping[CardKey, int]:
        """Return what such pods take of each card whose cards were judged when they were bound; see `under_way`."""
        found = Counter[CardKey]()
        with self._lock:
            for one in self._nodes.get(node, {}).values():
                if one.taken and one.uid not in but and not one.see(published, now):
                    found.update(one.taken)
        return found

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

    def _forget(self, uid: str) -> None:
        node = self._node_of.pop(uid, None)
        if node is not None:
            del self._nodes[node][uid]
            if not self._nodes[node]:
                del self._nodes[node]
