"""`nodeplug gpu`.

Owns: its options.
Refuses: everything else: the daemon has the data, and three renderers print it. They are imported when they are needed,
since every `nodeplug --help` imports this module.
"""

import socket
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer

from nodeplug import NotReady
from nodeplug.commands import DEFAULT, Config, Json, Root, inspect, print_json, show

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


class Format(Enum):
    """How to print."""

    chart = "chart"
    gpushare = "gpushare"
    json = "json"


@app.command()
def gpu(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    layout: Annotated[
        Format,
        typer.Option(
            "--format",
            metavar="LAYOUT",
            help="`chart`, `gpushare` (the table of `kubectl inspect gpushare`) or `json`.",
        ),
    ] = Format.chart,
    detailed: Annotated[bool, typer.Option("--details", "-d", help="With gpushare: a row per pod.")] = False,
) -> None:
    """Show the node's GPUs: free and allocated units and their holders, memory allocated and in use, health.

    Asks the running daemon, and takes root.

    Example: `nodeplug gpu --format gpushare -d`

    Example: `nodeplug gpu --json | jq '.[].cards[] | select(.state != "healthy")'`
    """
    from rich.text import Text

    from nodeplug_gpu.chart import chart

    if detailed and layout is not Format.gpushare:
        raise typer.BadParameter("--details is a layout of --format gpushare; add that, or leave --details out")
    if as_json and layout is Format.gpushare:
        raise typer.BadParameter("--json and --format gpushare exclude each other; choose one")
    reports = inspect("gpu", config, root)
    if as_json or layout is Format.json:
        print_json(reports)
        return
    if layout is Format.gpushare:
        print(_gpushare(reports, detailed=detailed))  # noqa: T201 - spaces separate the columns; rich would wrap
        return
    for name, report in reports.items():
        if len(reports) > 1:
            show(Text(f"[plugins.{name}]", "bold"))
        show(chart(report))


def _gpushare(reports: Mapping[str, Any], *, detailed: bool) -> str:
    """Return one table for the node, whose cards may belong to several sections.

    Raises:
        NotReady: allocations are not known; a table that shows none would be wrong.
    """
    from nodeplug_gpu import gpushare

    for report in reports.values():
        if report["allocations_unknown"] and report["cards"]:
            raise NotReady(report["allocations_unknown"])
    node = next((str(report["node"]) for report in reports.values() if report["node"]), "") or socket.gethostname()
    cards = [card for report in reports.values() for card in report["cards"]]
    return (gpushare.details if detailed else gpushare.summary)(node, _address(node), cards)


def _address(node: str) -> str:
    """Return the node's address as it resolves here; `unknown`, as the original prints, where it does not."""
    try:
        return socket.gethostbyname(node)
    except OSError:
        return "unknown"
