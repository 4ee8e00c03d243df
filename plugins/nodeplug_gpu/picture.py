"""Cards as bars, coloured by pod.

Owns: what people see of `nodeplug gpu`.
Refuses: to compute anything that the document does not say.
"""

from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nodeplug.fields import show_quantity

WIDTH: Final = 40
_COLOURS: Final = ("cyan", "magenta", "green", "yellow", "blue", "bright_red", "bright_cyan", "bright_magenta")
_FREE: Final = "·"
_USED: Final = "█"
_MARKS: Final = "█▓▒░"
"""Without colour, neighbours are told apart by these."""
_STATES: Final = {"healthy": "green", "suspect": "yellow", "recovering": "yellow", "unhealthy": "red"}


def picture(report: Mapping[str, Any]) -> RenderableType:
    """Draw one section's report: a bar per card, then the resources."""
    colours = _colours(report)
    parts: list[RenderableType] = [_driver(report)]
    parts += [_card(card, colours) for card in report["cards"]]
    parts += [_unsold(card) for card in report["unsold"]]
    parts.append(_resources(report["resources"]))
    if report["holders_unknown"]:
        parts.append(Text(report["holders_unknown"], "yellow"))
    return Group(*parts)


def _driver(report: Mapping[str, Any]) -> Text:
    driver = report["driver"]
    text = f"driver {driver['name']} {driver['version']}: {driver['state']}"
    text += f": {driver['reason']}" if driver["reason"] else ""
    text += f"\n{report['fault']}" if report["fault"] else ""
    return Text(text + "\n", "" if driver["state"] == "running" and not report["fault"] else "red")


def _unsold(card: Mapping[str, Any]) -> Text:
    return Text(f"GPU {card['index']}  {card['model']}  {card['uuid']}  not sold: {card['reason']}", "dim")


def _pod(use: Mapping[str, Any]) -> str:
    return f"{use['namespace']}/{use['pod']}"


def _colours(report: Mapping[str, Any]) -> Mapping[str, tuple[str, str]]:
    """Give each pod a colour and a mark of its own, the same on every card."""
    pods = dict.fromkeys(_pod(use) for card in report["cards"] for use in card["containers"])
    return dict(zip(pods, zip(cycle(_COLOURS), cycle(_MARKS), strict=False), strict=False))


def _card(card: Mapping[str, Any], colours: Mapping[str, tuple[str, str]]) -> Text:
    text = Text(
        f"GPU {card['index']}  {card['model']}  {show_quantity(card['memory_bytes'])}  {card['uuid']}  ", "bold"
    )
    text.append(card["state"], _STATES[card["state"]])
    text.append(f": {card['reason']}" if card["reason"] else "", "default")
    text.append("\n  ")
    text.append_text(_bar(card, colours))
    text.append(f"  {card['used_units']}/{card['units']} of {card['resource']}")
    if card["used_bytes"] is not None:
        text.append(f", {show_quantity(card['used_bytes'])} really used")
    text.append("\n")
    for use in card["containers"]:
        colour, mark = colours[_pod(use)]
        text.append(f"  {mark} ", colour)
        text.append(f"{_pod(use)}/{use['container']}  {use['units']}{_promise(use)}\n")
    return text


def _promise(use: Mapping[str, Any]) -> str:
    text = f" ({show_quantity(use['promised_bytes'])})" if use["promised_bytes"] else ""
    if use.get("used_bytes") is not None:
        text += f", {show_quantity(use['used_bytes'])} really used"
    return text + (", OVER ITS PROMISE" if use.get("over") else "")


def _bar(card: Mapping[str, Any], colours: Mapping[str, tuple[str, str]]) -> Text:
    bar = Text("[")
    drawn = sold = 0
    for use in card["containers"]:
        sold += use["units"]
        end = min(round(WIDTH * sold / card["units"]), WIDTH) if card["units"] else 0
        length = max(end - drawn, 1 if drawn < WIDTH else 0)  # whoever holds something is seen
        colour, mark = colours[_pod(use)]
        bar.append(mark * length, colour)
        drawn += length
    bar.append(_FREE * max(WIDTH - drawn, 0), "dim")
    bar.append("]")
    return bar


def _resources(resources: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("resource", "sharing", "unit", "used", "healthy", "devices", "", box=None, pad_edge=False)
    for one in resources:
        unit = show_quantity(one["unit_bytes"]) if one["unit_bytes"] else ""
        remark = "; ".join([*([one["reason"]] if one["reason"] else []), *one["notes"]])
        table.add_row(
            one["resource"], one["sharing"], unit, str(one["used"]), str(one["healthy"]), str(one["devices"]), remark
        )
    return table
