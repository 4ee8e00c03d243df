"""What nodes say of a resource, as it was last seen.

Owns: reading an annotation once for each change, what is kept of it, which former ones a node may still go by, and how
many nodes are remembered. Any thread may ask.
Refuses: I/O, and pods under way (`assumptions`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from nodeplug_gpu.extender.model import free_of
from nodeplug_gpu.free_memory import SETTLES, FreeCard, FreeMemory, Unreadable, annotation_of, decode, skim
from nodeplug_gpu.ids import CardKey

_REMEMBERED: Final = 20_000
"""Nodes; Kubernetes supports 5,000."""


@dataclass(frozen=True, slots=True)
class Published:
    """What a node says, as little of it as a question about a pod needs: there are thousands of nodes.

    Attributes:
        seq: as in `FreeMemory`; so for `policy` and `cards`.
        policy: how a card is chosen.
        cards: all that are advertised.
        free: units by card that can be allocated, if nothing is under way to the node.
        pods: whose units are not free, as the annotation names them.
        text: of the annotation.
    """

    seq: int
    policy: str
    cards: tuple[FreeCard, ...]
    free: Mapping[CardKey, int]
    pods: frozenset[str]
    text: str

    @classmethod
    def of(cls, text: str) -> "Published":
        """Read an annotation; raise Unreadable."""
        read, pods = skim(text)
        return cls(read.seq, read.policy, read.cards, free_of(read.cards), pods, text)

    def names(self, namespace: str, name: str, uid: str = "") -> bool:
        """Whether a pod is among those whose units are not free; see `FreeMemory.names`."""
        if not uid:
            return any(one == f"{namespace}/{name}" or one.startswith(f"{namespace}/{name}/") for one in self.pods)
        return not self.pods.isdisjoint((f"{namespace}/{name}", f"{namespace}/{name}/{uid}", f"?/{uid}"))

    @property
    def whole(self) -> FreeMemory:
        """All that the annotation says, read anew."""
        return decode(self.text)


class _Former(NamedTuple):
    """What a node said until it was seen to say something else."""

    said: Published
    until: float


class Nodes:
    """The nodes that were seen.

    Args:
        resource: of which they speak.
        clock: seconds of a clock that never goes back.
    """

    def __init__(self, resource: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._annotation = annotation_of(resource)
        self._clock = clock
        self._known: dict[str, tuple[str, Published | Unreadable]] = {}
        self._former: dict[str, tuple[_Former, ...]] = {}

    def read(self, name: str, node: Mapping[str, Any]) -> Published | None:
        """Return what a v1 Node says, and remember it; None if it says nothing.

        Raises:
            Unreadable: it says something else.
        """
        annotations = (node.get("metadata") or {}).get("annotations") or {}
        text = annotations.get(self._annotation)
        if not isinstance(text, str):
            self._known.pop(name, None)
            self._former.pop(name, None)
            return None
        known = self._known.get(name)
        if known is None or known[0] != text:
            known = self._note(name, known[1] if known is not None else None, text)
        elif name in self._former:
            self.former(name)  # thousands of nodes need not keep what they said once
        if isinstance(known[1], Unreadable):
            raise known[1]
        return known[1]

    def _note(self, name: str, before: Published | Unreadable | None, text: str) -> tuple[str, Published | Unreadable]:
        if len(self._known) >= _REMEMBERED:
            self._known.clear()
            self._former.clear()
        if isinstance(before, Published):
            former = _Former(replace(before, text=""), self._clock())
            self._former[name] = (*self._still(name), former)
        known = self._known[name] = (text, _read(text))
        return known

    def former(self, name: str) -> Sequence[Published]:
        """Return what a node said before, and may still choose cards by: news count `SETTLES` after they were told."""
        left = self._still(name)
        if left:
            self._former[name] = left
        else:
            self._former.pop(name, None)
        return [one.said for one in left]

    def _still(self, name: str) -> tuple[_Former, ...]:
        due = self._clock() - SETTLES
        return tuple(one for one in self._former.get(name, ()) if one.until > due)

    def last(self, name: str) -> Published | None:
        """Return what a node said last; None if it is not known."""
        found = self._known.get(name, ("", None))[1]
        return found if isinstance(found, Published) else None

    def __len__(self) -> int:
        """Return how many nodes have said something."""
        return len(self._known)


def _read(text: str) -> Published | Unreadable:
    try:
        return Published.of(text)
    except Unreadable as error:
        return error
