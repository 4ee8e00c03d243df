"""Cards as bars, coloured by pod.

Owns: the text that `nodeplug gpu` prints.
Refuses: to compute anything that is not in the document.
"""

import string
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nodeplug.fields import show_quantity

WIDTH: Final = 32
"""Columns of a bar; with its text a line has at most 80 for the usual names."""
_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
_MARKS: Final = string.ascii_uppercase + string.ascii_lowercase + string.digits
"""They distinguish pods where there is no colour."""
_FREE: Final = "·"
_UNKNOWN: Final = "?"
_UNCONFIRMED: Final = "+"
_STATES: Final = {"healthy": "green", "suspect": "yellow", "recovering": "yellow", "unhealthy": "red"}
_MINUTE: Final = 60
_HOUR: Final = 3600

Marks = Mapping[str, tuple[str, str]]


def chart(report: Mapping[str, Any]) -> RenderableType:
    """Draw one section's document: a bar per card, then the resources."""
    cards = sorted(report["cards"], key=lambda card: card["index"])
    marks = _marks(cards)
    parts: list[RenderableType] = [_driver(report)]
    parts += [_card(card, marks) for card in cards]
    parts += [_unadvertised(card) for card in report["unadvertised"]]
    parts += [Text(f"{sentence}\n", "yellow") for sentence in report["unreadable"]]
    parts.append(_resources(report["resources"]))
    parts += [Text(note, "yellow") for note in _notes(report)]
    return Group(*parts)


def _driver(report: Mapping[str, Any]) -> Text:
    driver = report["driver"]
    version = f" {driver['version']}" if driver["version"] not in {"", driver["name"]} else ""
    text = f"driver {driver['name']}{version}: {driver['state']}"
    text += f": {driver['reason']}" if driver["reason"] else ""
    text += "; its devices are for claims" if report.get("serve") == "dra" else ""
    text += f"\n{report['conflict']}" if report["conflict"] else ""
    return Text(text + "\n", "" if driver["state"] == "running" and not report["conflict"] else "red")


def _unadvertised(card: Mapping[str, Any]) -> Text:
    return Text(f"GPU {card['index']}  {card['model']}  not advertised: {card['reason']}\n  {card['uuid']}\n", "dim")


def _pod(use: Mapping[str, Any]) -> str:
    """Return the pod, or the claim as long as it is not known whose it is."""
    return f"{use['namespace']}/{use['pod']}" if use["pod"] else f"claim {', '.join(use['claims'])}"


def _marks(cards: Sequence[Mapping[str, Any]]) -> Marks:
    """Give each pod a mark and a colour of its own, the same on every card."""
    pods = dict.fromkeys(_pod(use) for card in cards for use in card["containers"])
    return dict(zip(pods, zip(cycle(_MARKS), cycle(_COLOURS), strict=False), strict=False))


# --- one card -------------------------------------------------------------------------------------------------------


def _card(card: Mapping[str, Any], marks: Marks) -> Text:
    memory = show_quantity(card["memory_bytes"]) if card["memory_bytes"] else "memory unknown"
    facts = [f"GPU {card['index']}", card["model"], memory]
    facts += [f"NUMA node {card['numa_node']}"] if card["numa_node"] is not None else []
    text = Text().append("  ".join(facts), "bold").append("  ")
    text.append_text(_state(card))
    text.append(f"\n  {card['uuid']}\n  ")
    text.append_text(_bar(card, marks))
    text.append(f"  {_allocated(card)}\n")
    for line in (*_holders(card, marks), *_unallocated(card), *_instances(card)):
        text.append("  ").append_text(line).append("\n")
    return text


def _state(card: Mapping[str, Any]) -> Text:
    """Return the state of a card or an instance: since when, and why, unless it is healthy."""
    draining = card["state"] in {"healthy", "suspect"} and not card["allocatable"]
    word = f"{card['state']}, not allocatable" if draining else card["state"]
    since = "" if card["state"] == "healthy" else f" for {_duration(card['state_seconds'])}"
    text = Text().append(word, "yellow" if draining else _STATES[card["state"]])
    return text.append(f"{since}: {card['reason']}" if card["reason"] else since)


def _duration(seconds: float) -> str:
    if seconds < _MINUTE:
        return f"{seconds:.0f} s"
    return f"{seconds / _MINUTE:.0f} min" if seconds < _HOUR else f"{seconds / _HOUR:.1f} h"


def _allocated(card: Mapping[str, Any]) -> str:
    used = _UNKNOWN if card["allocated_units"] is None else card["allocated_units"]
    text = "no units " if card["units"] is None else f"{used}/{card['units']} "
    text += "instances" if card["instances"] and card["sharing"] == "mig" else f"of {card['resource']}"
    text += f", its memory {card['oversubscribe']:g} times" if card["oversubscribe"] > 1 else ""
    if card["unconfirmed_units"]:
        text += f", {card['unconfirmed_units']} of them allocated and not confirmed by kubelet yet"
    if card["used_bytes"]:
        text += f", {show_quantity(card['used_bytes'])} in use"
    if card["unattributed_bytes"]:
        text += f", {show_quantity(card['unattributed_bytes'])} of it unattributed"
    if card["limits"].startswith(("kernel", "mps", "none:")):
        text += f", limits: {card['limits']}"
    return text


def _bar(card: Mapping[str, Any], marks: Marks) -> Text:
    bar = Text("[")
    drawn = allocated = 0
    parts = [(use["card_units"], *marks[_pod(use)]) for use in card["containers"]]
    if card["unconfirmed_units"]:
        parts.append((card["unconfirmed_units"], _UNCONFIRMED, "white"))
    for units, mark, colour in parts:
        if not units:  # it has what one before it has, by the same claim
            continue
        allocated += units
        end = min(round(WIDTH * allocated / card["units"]), WIDTH) if card["units"] else 0
        length = max(end - drawn, 1 if drawn < WIDTH else 0)  # the smallest allocation is visible
        bar.append(mark * length, f"reverse {colour}")
        drawn += length
    rest = " " if card["units"] is None else _UNKNOWN if card["allocated_units"] is None else _FREE
    bar.append(rest * max(WIDTH - drawn, 0), "dim")
    return bar.append("]")


def _holders(card: Mapping[str, Any], marks: Marks) -> Iterator[Text]:
    for use in card["containers"]:
        mark, colour = marks[_pod(use)]
        text = Text().append(mark, f"reverse {colour}")
        memory = f" ({show_quantity(use['allocated_bytes'])})" if use["allocated_bytes"] else ""
        name = f" of {use['resource']}" if use["orphaned"] else ""
        who = f"{_pod(use)}/{use['container']}" if use["pod"] else _pod(use)
        text.append(f" {who}  {use['units']}{name}{memory}")
        text.append(f", {show_quantity(use['used_bytes'])} in use" if use["used_bytes"] else "")
        text.append(f", busy {busy['sm']} %" if (busy := use["utilization_percent"]) is not None else "")
        if use.get("limits") not in {None, card["limits"]}:
            text.append(f", limits: {use['limits']}", "yellow")
        yield text.append(", OVER ITS ALLOCATION" if use["overuse"] else "", "bold red")


def _unallocated(card: Mapping[str, Any]) -> Iterator[Text]:
    for use in card["unallocated_containers"]:
        text = f"  {_pod(use)}/{use['container']}  without an allocation, {show_quantity(use['used_bytes'])} in use"
        yield Text(text, "bold red")


def _instances(card: Mapping[str, Any]) -> Iterator[Text]:
    for one in card["instances"]:
        name = one["resource"] or ("not advertised" if card["sharing"] == "mig" else f"part of {card['resource']}")
        text = Text(f"{one['profile']}  {one['uuid']}  {name}")
        text.append("".join(f", allocated to {who}" for who in one["containers"]))
        if one["state"] != "healthy" or (card["allocatable"] and not one["allocatable"]):
            text.append("  ").append_text(_state(one))
        yield text


# --- all cards ------------------------------------------------------------------------------------------------------


def _resources(resources: Sequence[Mapping[str, Any]]) -> Table:
    with_unit = any(one["unit_bytes"] for one in resources)
    numbers = ("allocated", "healthy", "devices")
    table = Table("resource", "sharing", *(["unit"] if with_unit else []), box=None, pad_edge=False)
    for name in numbers:
        table.add_column(name, justify="right")
    for one in resources:
        unit = [show_quantity(one["unit_bytes"]) if one["unit_bytes"] else ""] if with_unit else []
        counts = [_UNKNOWN if one[name] is None else str(one[name]) for name in numbers]
        table.add_row(one["resource"], one["sharing"], *unit, *counts)
    return table


def _notes(report: Mapping[str, Any]) -> Sequence[str]:
    """Return the notes on resources, each sentence once, and why allocations are not known.

    What the driver's line says is not repeated: without a driver it is the reason of every resource.
    """
    found: dict[str, list[str]] = {}
    for one in report["resources"]:
        repeated = bool(report["driver"]["reason"]) and report["driver"]["reason"] in one["reason"]
        for sentence in [] if repeated else [one["reason"]] if one["reason"] else one["notes"]:
            found.setdefault(sentence, []).append(one["resource"])
    notes = [f"{', '.join(names)}: {sentence}" for sentence, names in found.items()]
    return [*notes, *([report["allocations_unknown"]] if report["allocations_unknown"] and report["cards"] else [])]
