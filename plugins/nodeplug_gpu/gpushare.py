"""The tables of `kubectl inspect gpushare`, for one node from its own allocations.

Owns: their layout, column by column, so that scripts that read them go on working.
Refuses: what the original gets from the API server: this node knows only its own containers, and none is pending.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

_GIB: Final = 1 << 30


def summary(node: str, address: str, cards: Sequence[Mapping[str, Any]]) -> str:
    """Return the short form: a row for the node, a column per card.

    Args:
        node: its name.
        address: its internal address.
        cards: of the document; those that are not shared by memory are left out.
    """
    cards = _shared_by_memory(cards)
    used, total = _totals(cards)
    heads = ["NAME", "IPADDRESS", *(f"GPU{card['index']}(Allocated/Total)" for card in cards)]
    row = [node, address, *(f"{card['allocated_units']}/{card['units']}" for card in cards), f"{used}/{total}"]
    rows = [row] if total else []  # as in the original: a node without units has no row
    rule = "-" * (sum(len("\t".join(row).encode()) + 1 for row in rows) + 20)
    return "\n".join(
        [
            *_columns([[*heads, f"GPU Memory({_unit(cards)})"], *rows]),
            rule,
            "Allocated/Total GPU Memory In Cluster:",
            f"{used}/{total} ({_percent(used, total)}%)  ",
        ]
    )


def details(node: str, address: str, cards: Sequence[Mapping[str, Any]]) -> str:
    """Return the long form (`-d`): a row per pod. The arguments are those of `summary`."""
    cards = _shared_by_memory(cards)
    used, total = _totals(cards)
    pods: dict[tuple[str, str], dict[str, int]] = {}
    for card in cards:
        for use in card["containers"]:
            pod = use["pod"] or ", ".join(f"claim {one}" for one in use["claims"])
            allocated = pods.setdefault((pod, use["namespace"]), {})
            allocated[card["uuid"]] = allocated.get(card["uuid"], 0) + use["card_units"]
    heads = ["NAME", "NAMESPACE", *(f"GPU{card['index']}(Allocated)" for card in cards)]
    rows = [[*pod, *(str(one.get(card["uuid"], 0)) for card in cards)] for pod, one in sorted(pods.items())]
    percent = _percent(used, total)
    sums = [["Allocated :", f"{used} ({percent}%)"], ["Total :", str(total)]]  # in the columns of the pods
    width = sum(len("\t".join([*row, "\n"]).encode()) for row in rows) + 10
    return "\n".join(
        [
            "",
            *_columns([["NAME:", node], ["IPADDRESS:", address]]),
            "",
            *_columns([heads, *rows, *sums]),
            "-" * width,
            "",
            "",
            f"Allocated/Total GPU Memory In Cluster:  {used}/{total} ({percent}%)  ",
        ]
    )


def _shared_by_memory(cards: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    shared = (card for card in cards if card["sharing"] == "memory" and card["units"] is not None)
    return sorted(shared, key=lambda card: card["index"])


def _totals(cards: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
    return sum(card["allocated_units"] for card in cards), sum(card["units"] for card in cards)


def _percent(used: int, total: int) -> int:
    return used * 100 // total if total else 0


def _unit(cards: Sequence[Mapping[str, Any]]) -> str:
    sizes = {card["unit_bytes"] for card in cards}
    size = sizes.pop() if len(sizes) == 1 else 0
    return "GiB" if size == _GIB else "MiB" if size == 1 << 20 else f"{size >> 20} MiB" if size else "units"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Pad cells to two spaces more than the widest of their column; a row may have fewer cells than the first."""
    widths = [max(len(row[column]) for row in rows if column < len(row)) + 2 for column in range(len(rows[0]))]
    return ["".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip() for row in rows]
