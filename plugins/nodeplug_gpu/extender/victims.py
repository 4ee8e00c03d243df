"""What an eviction frees on the cards of a node.

Owns: finding victims among the pods of an annotation.
Refuses: to choose victims: kube-scheduler has, and needs those that it names for other resources too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from nodeplug_gpu.free_memory import FreeMemory
from nodeplug_gpu.ids import CardKey


def frees(published: FreeMemory, victims: Mapping[str, Mapping[str, Any]]) -> Sequence[Mapping[CardKey, int]] | None:
    """Return the units by card that pods free on a node; None if it does not say who holds what.

    Args:
        published: what the node says.
        victims: v1 Pods by UID. One that the node does not name frees nothing that is in its figures.
    """
    if len(published.held) != len(published.pods):
        return None
    places = {uid: pod.get("metadata") or {} for uid, pod in victims.items()}
    return [
        {CardKey(card): units for card, units in held.items()}
        for one, held in zip(published.pods, published.held, strict=True)
        if any(one.means(str(at.get("namespace")), str(at.get("name")), uid) for uid, at in places.items())
    ]
