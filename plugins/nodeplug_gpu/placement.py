"""Preferred allocation: which ids a container should get.

Owns: the choice among the available ids that kubelet names, as pure functions.
Refuses: to allocate anything, and to fail: kubelet may fill up the rest at random, and Allocate checks it. An error
here would reject the pod and leave the ids in use for a while (kubelet does not release them then).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from nodeplug import DeviceId, DevicePrefer
from nodeplug_gpu.ids import CardKey, by_card

Policy = Literal["binpack", "spread"]
Grouping = Callable[[Iterable[DeviceId]], Mapping[Any, list[DeviceId]]]


def single_card(request: DevicePrefer, policy: Policy) -> list[DeviceId]:
    """Choose ids of one card: the fullest that fits (`binpack`), or the emptiest (`spread`), then by the card's key.

    What must be included (left over from an init container of the pod) pins its card. Where no card fits, the answer
    is what must be included and what is left of the largest card, which Allocate then refuses with the numbers.
    """
    must = list(dict.fromkeys(request.must_include))
    taken = set(must)
    free = {card: [name for name in names if name not in taken] for card, names in by_card(request.available).items()}
    wanted = max(request.size - len(must), 0)
    card = card_for({card: len(names) for card, names in free.items()}, list(by_card(must)), wanted, policy)
    return must + (free[card][:wanted] if card is not None else [])


def card_for(free: Mapping[CardKey, int], pinned: Sequence[CardKey], wanted: int, policy: Policy) -> CardKey | None:
    """Choose the card of a container by what is free on each; whoever plans for another node asks the same.

    Args:
        free: units by card.
        pinned: cards of units that the container gets in any case.
        wanted: units beyond those.
        policy: of the resource.

    Returns:
        A card that fits, or the largest if none does: then it has less than `wanted`. None without cards.
    """
    if pinned:
        return pinned[0] if pinned[0] in free else None
    fitting = [card for card, left in free.items() if left >= wanted]
    if not fitting:
        return max(free, key=lambda card: (free[card], card), default=None)
    sign = 1 if policy == "binpack" else -1
    return min(fitting, key=lambda card: (sign * free[card], card))


def distributed(
    request: DevicePrefer,
    policy: Policy,
    grouped: Grouping = by_card,
) -> list[DeviceId]:
    """Choose replicas of different cards as long as there are enough, then of those that `policy` prefers.

    Two replicas of one card give a container nothing that one does not.

    Args:
        request: what kubelet asks for.
        policy: of the resource.
        grouped: groups ids by what they are replicas of.
    """
    must = list(dict.fromkeys(request.must_include))
    taken = set(must)
    free = {card: [name for name in names if name not in taken] for card, names in grouped(request.available).items()}
    used = {card: len(names) for card, names in grouped(must).items()}
    chosen = must
    sign = 1 if policy == "binpack" else -1
    while len(chosen) < request.size:
        candidates = [card for card, names in free.items() if names]
        if not candidates:
            break
        card = min(candidates, key=lambda card: (used.get(card, 0), sign * len(free[card]), card))
        chosen.append(free[card].pop(0))
        used[card] = used.get(card, 0) + 1
    return chosen


def packed(request: DevicePrefer, groups: Mapping[DeviceId, str]) -> list[DeviceId]:
    """Choose whole devices of as few groups (NUMA nodes, or the cards of MIG instances) as possible.

    The smallest group that holds all of them; else the largest groups one after another.

    Args:
        request: what kubelet asks for.
        groups: the group of each device; one without an entry is a group of its own.
    """
    chosen = list(dict.fromkeys(request.must_include))
    taken = set(chosen)
    free: dict[str, list[DeviceId]] = {}
    for name in request.available:
        if name not in taken:
            free.setdefault(groups.get(name, name), []).append(name)
    held = {groups.get(name, name) for name in chosen}
    while free and len(chosen) < request.size:
        wanted = request.size - len(chosen)
        group = _group_for(free, held, wanted)
        chosen += free.pop(group)[:wanted]
    return chosen


def _group_for(free: Mapping[str, Sequence[DeviceId]], held: set[str], wanted: int) -> str:
    near = [group for group in free if group in held]
    if near:
        return near[0]
    fitting = [group for group in free if len(free[group]) >= wanted]
    if fitting:
        return min(fitting, key=lambda group: (len(free[group]), group))
    return max(free, key=lambda group: (len(free[group]), group))
