"""`nodeplug gpu`.

Owns: its options.
Refuses: everything else: the daemon has the data, and three renderers print it. They are imported when they are needed,
since every `nodeplug --help` imports this module.
"""

import socket
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import typer

from nodeplug import NotReady
from nodeplug.commands import DEFAULT, Config, Json, Root, inspect, print_json, show

app = typer.Typer(add_completion=False, rich_markup_mode="markdown")


class Format(StrEnum):
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

    Asks the running daemon, and needs root.

    Example: `nodeplug gpu --format gpushare -d`

    Example: `nodeplug gpu --json | jq '.[].cards[] | select(.state != "healthy")'`
    """
    from nodeplug_gpu.chart import chart

    if detailed and layout is not Format.gpushare:
        raise typer.BadParameter("--details is a layout of --format gpushare; add that, or leave --details out")
    if as_json and layout is Format.gpushare:
        raise typer.BadParameter("--json and --format gpushare exclude each other; choose one")
    reports = inspect("gpu", config, root)
    if as_json or layout is Format.json:
        print_json(reports)
        return
    report = next(report for report in reports.values() if "cards" in report)  # a section may be called gpu
    if layout is Format.gpushare:
        print(_gpushare(report, detailed=detailed))  # noqa: T201 - spaces separate the columns; rich would wrap
    else:
        show(chart(report))


def _gpushare(report: Mapping[str, Any], *, detailed: bool) -> str:
    """Return the table of the node.

    Raises:
        NotReady: allocations are not known; a table that shows none would be wrong.
    """
    from nodeplug_gpu import gpushare

    if report["allocations_unknown"] and report["cards"]:
        raise NotReady(report["allocations_unknown"])
    node = str(report["node"]) or socket.gethostname()
    return (gpushare.details if detailed else gpushare.summary)(node, _address(node), report["cards"])


def _address(node: str) -> str:
    """Return the node's address as it resolves here; `unknown`, as the original prints, where it does not."""
    try:
        return socket.gethostbyname(node)
    except OSError:
        return "unknown"
