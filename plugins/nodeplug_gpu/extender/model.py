"""One node as whoever places pods there must see it: what its annotation says, less what is under way to it.

Owns: kubelet's way through a pod's containers with the plugin's choice of a card for each, as pure functions, and
what becomes of the figures when pods come and go.
Refuses: I/O, the clock, and to know which pods are under way (`assumptions`).

Sources: kubelet 1.35, pkg/kubelet/cm/devicemanager/manager.go (Allocate, devicesToReuse).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal, Protocol

from nodeplug_gpu.extender.wants import Want
from nodeplug_gpu.free_memory import FreeCard
from nodeplug_gpu.ids import CardKey
from nodeplug_gpu.placement import Policy, card_for

Verdict = Literal["fits", "full", "never"]
"""Whether a pod gets its cards: now, perhaps when others have gone, or never on this node."""
_VERDICTS: Final[Sequence[Verdict]] = ("fits", "full", "never")
HIGHEST: Final = 10


class Cards(Protocol):
    """What a node says of its cards, whole or not; see `FreeMemory`."""

    @property
    def policy(self) -> str:
        """How a card is chosen."""

    @property
    def cards(self) -> Sequence[FreeCard]:
        """All that are advertised."""


@dataclass(frozen=True, slots=True)
class Placed:
    """What a pod would get.

    Attributes:
        cards: of its containers, in order, one for each want.
        free: what is left by card afterwards.
    """

    cards: tuple[CardKey, ...]
    free: Mapping[CardKey, int]


def place(free: Mapping[CardKey, int], wants: Sequence[Want], policy: Policy) -> Placed | None:
    """Go through a pod's containers as kubelet does; None if one of them finds no card: then it rejects the whole pod.

    Units of a regular init container stay the pod's: the next containers take them first, and what they need beyond
    those is of the same card. Sidecars and app containers keep what they take.

    Args:
        free: units by card that can be allocated now.
        wants: of the containers, in order.
        policy: of the resource.
    """
    left, cards = dict(free), list[CardKey]()
    kept: CardKey | None = None  # the card of what init containers have left; it is one card at any time
    spare = 0
    for want in wants:
        reused = min(spare, want.units)
        card, fresh = kept, want.units - reused
        if fresh:
            card = card_for(left, [kept] if spare and kept is not None else [], fresh, policy)
        if card is None or left.get(card, 0) < fresh:
            return None
        left[card] = left.get(card, 0) - fresh
        cards.append(card)
        if want.kind == "init":
            kept, spare = card, spare + fresh
        else:
            spare -= reused
    return Placed(tuple(cards), left)


@dataclass(slots=True)
class NodeModel:
    """One resource of one node.

    Attributes:
        published: what the node says.
        free: units by card that can be allocated: of healthy cards, without what is under way.
    """

    published: Cards
    free: Mapping[CardKey, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        published: Cards,
        under_way: Iterable[Sequence[Want]] = (),
        taken: Mapping[CardKey, int] = MappingProxyType({}),
    ) -> "NodeModel":
        """Make the model of a node.

        Args:
            published: its annotation.
            under_way: what each pod wants that is bound to the node and not among `published.pods`, in the order in
                which they were bound. One that finds no card takes nothing: kubelet rejects it.
            taken: units by card of further such pods, whose cards are known.
        """
        left = free_of(published.cards)
        free: Mapping[CardKey, int] = {card: max(units - taken.get(card, 0), 0) for card, units in left.items()}
        for wants in under_way:
            placed = place(free, wants, _policy(published))
            free = placed.free if placed is not None else free
        return cls(published, free)

    def place(self, wants: Sequence[Want]) -> Placed | None:
        """Return what a pod would get now; None if a container finds no card."""
        return place(self.free, wants, _policy(self.published))

    def takes(self, placed: Placed) -> Mapping[CardKey, int]:
        """Return the units by card that a pod takes which was placed here."""
        return {card: units - placed.free[card] for card, units in self.free.items() if units != placed.free[card]}

    def judge(self, wants: Sequence[Want]) -> Verdict:
        """Say whether a pod gets its cards here: never, if a container wants more than the largest card has."""
        if len(wants) == 1:  # nearly every pod: any card that has as much
            fits = max(self.free.values(), default=0) >= wants[0].units
        else:
            fits = self.place(wants) is not None
        if fits:
            return "fits"
        largest = max((one.units for one in self.published.cards), default=0)
        return "never" if any(one.units > largest for one in wants) else "full"

    def score(self, wants: Sequence[Want], policy: Policy) -> int:
        """Say how well a pod suits the card of its largest container, from 0 to 10.

        Args:
            wants: of the pod.
            policy: `binpack` likes cards that are full with the pod, `spread` those that are empty before it.

        Returns:
            0 also where the pod does not fit.
        """
        if len(wants) == 1:  # nearly every pod
            card, wanted = card_for(self.free, [], wants[0].units, _policy(self.published)), wants[0].units
            if card is None or self.free[card] < wanted:
                return 0
            left = self.free[card] - wanted
        else:
            placed = self.place(wants)
            if placed is None or not wants:
                return 0
            card = placed.cards[max(range(len(wants)), key=lambda index: wants[index].units)]
            left = placed.free[card]
        units = next(one.units for one in self.published.cards if one.key == card)
        part = self.free[card] if policy == "spread" else units - left
        return HIGHEST * part // max(units, 1)

    def without(self, held: Iterable[Mapping[CardKey, int]]) -> "NodeModel":
        """Return the model as it would be without some pods, each with its units by card."""
        free, units = dict(self.free), {one.key: one.units for one in self.published.cards if one.healthy}
        for one in held:
            for card, count in one.items():
                if card in units:
                    free[card] = min(free[card] + count, units[card])
        return NodeModel(self.published, free)


def worst(verdicts: Iterable[Verdict]) -> Verdict | None:
    """Return the verdict on a pod of which it is not known how things will be when it comes; None without any."""
    return max(verdicts, key=_VERDICTS.index, default=None)


def free_of(cards: Iterable[FreeCard]) -> Mapping[CardKey, int]:
    """Return the units by card that can be allocated: none of one that is not healthy."""
    return {CardKey(one.key): one.free if one.healthy else 0 for one in cards}


def _policy(published: Cards) -> Policy:
    return "binpack" if published.policy == "binpack" else "spread"
