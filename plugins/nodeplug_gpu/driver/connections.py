"""How cards are connected: NVLinks, and how far apart they are on PCIe.

Owns: the questions to NVML about it, asked when the cards or their links are others than at the last poll. Links come
up late, where a fabric manager trains them, and go down with a fault; as each is one question, one card at a time is
looked at with each poll. Runs in the driver process.
Refuses: to fail: a card that does not tell has no links; and to say which cards go together (`connected` knows).

With NVSwitch the far ends of a card's links are switches, and with bridges or a mesh they are cards.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, Final

from nodeplug_gpu.cards import Card, CardPair, Uuid
from nodeplug_gpu.driver.calls import DRIVER_WIDE, Calls, NvmlFailure
from nodeplug_gpu.driver.texts import bus_of

_MAX_LINKS: Final = 36
_SYSTEM: Final = 50
"""NVML_TOPOLOGY_SYSTEM: nothing nearer than the machine is common to both."""

Handles = Sequence[tuple[int, Uuid, Any]]


class ConnectionReader:
    """Reads connections; keeps them as long as the cards and their links are the same."""

    def __init__(self, calls: Calls) -> None:
        """Make a reader that uses the calls of the polling thread."""
        self._calls = calls
        self._ends: Mapping[Uuid, Counter[str]] = {}
        self._turn = 0
        self._pairs: tuple[CardPair, ...] = ()

    def pairs(self, handles: Handles, cards: Sequence[Card]) -> tuple[CardPair, ...]:
        """Return how each two cards are connected.

        Args:
            handles: index, UUID and handle of each card that can be asked.
            cards: what is known of them.

        Raises:
            NvmlFailure: the driver as a whole does not answer.
        """
        if [uuid for _, uuid, _ in handles] != [*self._ends] or self._changed(handles):
            addresses = {card.pci: card.uuid for card in cards if card.pci}
            self._ends = ends = {uuid: self._read(index, uuid, handle) for index, uuid, handle in handles}
            own = {uuid: address for address, uuid in addresses.items()}
            self._pairs = tuple(
                CardPair(one, other, _links(ends, own, one, other), self._distance(index, one, first, second))
                for (index, one, first), (_, other, second) in combinations(handles, 2)
            )
        return self._pairs

    def _changed(self, handles: Handles) -> bool:
        """Whether the card whose turn it is has other links than before."""
        if len(handles) < 2:
            return False
        self._turn = (self._turn + 1) % len(handles)
        index, uuid, handle = handles[self._turn]
        return self._read(index, uuid, handle) != self._ends[uuid]

    def _read(self, index: int, uuid: Uuid, handle: Any) -> Counter[str]:
        """Return how many active links of a card lead to each PCI address."""
        ends = Counter[str]()
        with self._calls.about(index, uuid):
            for link in range(_MAX_LINKS):
                # Which numbers a card has is not told: some are missing in between.
                active = self._ask("nvmlDeviceGetNvLinkState", handle, link)
                if active == 1 and (end := bus_of(self._ask("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link))):
                    ends[end] += 1
        return ends

    def _distance(self, index: int, uuid: Uuid, one: Any, other: Any) -> int:
        with self._calls.about(index, uuid):
            level = self._ask("nvmlDeviceGetTopologyCommonAncestor", one, other)
        return level if isinstance(level, int) and 0 <= level <= _SYSTEM else _SYSTEM

    def _ask(self, symbol: str, *arguments: Any) -> Any:
        try:
            return self._calls(symbol, *arguments)
        except NvmlFailure as error:
            if error.code in DRIVER_WIDE:
                raise
            return None


def _links(ends: Mapping[Uuid, Counter[str]], own: Mapping[Uuid, str], one: Uuid, other: Uuid) -> int:
    """Return the links between two cards: direct ones, and those by way of what both have links to."""
    cards = set(own.values())
    direct = max(ends[one][own.get(other, "-")], ends[other][own.get(one, "-")])
    switches = sum(min(count, ends[other][end]) for end, count in ends[one].items() if end not in cards)
    return direct + switches
