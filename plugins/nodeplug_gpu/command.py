"""`nodeplug gpu`, and what belongs to it.

Owns: their options.
Refuses: everything else: the daemon has the data, and three renderers print it. They are imported when they are needed,
since every `nodeplug --help` imports this module.
"""

import socket
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
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


@app.callback(invoke_without_command=True)
def gpu(
    context: typer.Context,
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
    if context.invoked_subcommand is not None:
        return
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


@app.command("import")
def import_(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Its configuration file, a ConfigMap with such files, or `-`.")
    ],
    key: Annotated[
        str, typer.Option("--key", metavar="NAME", help="Which file of a ConfigMap.", show_default=False)
    ] = "",
    variables: Annotated[
        list[str] | None,
        typer.Option("--env", metavar="NAME=VALUE", help="A variable of its container; once for each."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Translate the configuration of NVIDIA's device plugin: print what does the same here.

    Prints a `[plugins.gpu.config]`, led by a comment for each key that means something else here, or nothing. What it
    prints is checked as `nodeplug check-config` would.

    Example: `nodeplug gpu import config.yaml --env MIG_STRATEGY=mixed --env DP_DISABLE_HEALTHCHECKS=79`

    Example: `kubectl get -n gpu-operator configmap time-slicing -o yaml | nodeplug gpu import - --key any`
    """
    from nodeplug_gpu.importing import imported, rendered

    found = imported(file, key, variables or ())
    if as_json:
        print_json({"config": found.config, "notes": found.notes})
    else:
        print(rendered(found), end="")  # noqa: T201 - a file


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
