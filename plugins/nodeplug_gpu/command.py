"""`nodeplug gpu`.

Owns: its options.
Refuses: everything else: the daemon knows, and three renderers show it. Those are imported when they are needed: every
`nodeplug --help` reads this module.
"""

import socket
from collections.abc import Mapping
from enum import Enum
from typing import Annotated, Any

import typer

from nodeplug.commands import DEFAULT, Config, Json, Root, inspect, print_json, show

app = typer.Typer(add_completion=False)


class Format(Enum):
    """How to print."""

    picture = "picture"
    gpushare = "gpushare"
    json = "json"


@app.command()
def gpu(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    layout: Annotated[
        Format, typer.Option("--format", help="A picture, the table of `kubectl inspect gpushare`, or JSON.")
    ] = Format.picture,
    detailed: Annotated[bool, typer.Option("--details", "-d", help="With gpushare: a row per pod.")] = False,
) -> None:
    """Show the node's GPUs: free and used units, who holds them, memory promised and used, health and its reason.

    Examples: `nodeplug gpu`, `nodeplug gpu --json | jq '.[].cards[] | select(.state != "healthy")'`,
    `nodeplug gpu --format gpushare -d`
    """
    from rich.text import Text

    from nodeplug_gpu.picture import picture

    reports = inspect("gpu", config, root)
    if as_json or layout is Format.json:
        print_json(reports)
        return
    for name, report in reports.items():
        if layout is Format.gpushare:
            print(_gpushare(report, detailed=detailed))  # noqa: T201 - columns are told apart by spaces; rich would wrap
            continue
        if len(reports) > 1:
            show(Text(f"[plugins.{name}]", "bold"))
        show(picture(report))


def _gpushare(report: Mapping[str, Any], *, detailed: bool) -> str:
    from nodeplug_gpu import gpushare

    node = str(report.get("node") or socket.gethostname())
    return (gpushare.details if detailed else gpushare.summary)(node, _address(node), report)


def _address(node: str) -> str:
    """Return the node's address as it resolves here; the original's word where it does not."""
    try:
        return socket.gethostbyname(node)
    except OSError:
        return "unknown"
