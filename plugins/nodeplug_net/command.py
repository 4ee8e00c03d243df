"""`nodeplug net`.

Owns: its commands and their options.
Refuses: the work. It is imported when a command runs, since every `nodeplug --help` imports this module.
"""

import logging
from collections.abc import Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from nodeplug import NotReady, PluginError
from nodeplug.commands import DEFAULT, Config, Json, Root, ask_daemon, print_json, show
from nodeplug_net import DATA_DIR

if TYPE_CHECKING:
    from nodeplug_net.leftovers.evidence import Verdict

RUN_DIR: Final = Path("/run/nodeplug")
"""The default of `run_dir` in `[supervisor]`."""

_PATIENCE: Final = 120.0
"""Seconds in which the daemon ends what is left over."""
app = typer.Typer(add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)


@app.callback()
def net() -> None:
    """Look after the networks of nodeplug's CNI plugins.

    Example: `nodeplug net to-reference`
    """


class Backend(StrEnum):
    """How the reference's bridge masquerades."""

    iptables = "iptables"
    nftables = "nftables"


@app.command("to-reference")
def to_reference(
    apply: Annotated[bool, typer.Option("--apply", help="Do it; without this it is only shown.")] = False,
    backend: Annotated[
        Backend,
        typer.Option("--backend", metavar="KIND", help="`iptables`, which every release can end, or `nftables` (1.6)."),
    ] = Backend.iptables,
    network: Annotated[
        str, typer.Option("--network", metavar="NAME", help="One network alone.", show_default=False)
    ] = "",
    addresses: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where host-local keeps the addresses of networks.")
    ] = DATA_DIR,
    run: Annotated[
        Path, typer.Option("--run-dir", metavar="DIR", help="The daemon's `run_dir`, where host ports are recorded.")
    ] = RUN_DIR,
    as_json: Json = False,
) -> None:
    """Hand what is kept for running containers to the reference's plugins, before they are to end them.

    Masquerading, host ports and what the firewall accepts. Run it on the node, as root, when the `type`s of the network
    are the reference's again: containers keep their connections. It may be repeated. See
    docs/moving-from-the-reference.md.

    Example: `nodeplug net to-reference --apply`
    """
    from nodeplug_net.nftables.sockets import open_nft
    from nodeplug_net.reference.handing_over import HandingOver, refuse_unknown
    from nodeplug_net.reference.recorded import Node
    from nodeplug_net.undo import kernel_errors

    log = logging.LoggerAdapter(logging.getLogger("nodeplug.net"))
    node = Node(run, addresses, network)
    with kernel_errors(), open_nft() as netlink:
        found = HandingOver(netlink, node)
        strays = found.apply(backend.value, log) if apply else []
    parts = found.parts()
    _tell([one.told(applied=apply) for one in parts], as_json=as_json, applied=apply)
    refuse_unknown(parts, strays, node)


@app.command("gc")
def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be freed, and why.")] = False,
    unknown: Annotated[
        bool, typer.Option("--unknown", help="Free also those of whose containers nothing is known.")
    ] = False,
    network: Annotated[
        str, typer.Option("--network", metavar="NAME", help="One network alone.", show_default=False)
    ] = "",
    addresses: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Where host-local keeps the addresses of networks.")
    ] = DATA_DIR,
    backups: Annotated[
        Path, typer.Option("--tuning-dir", metavar="DIR", help="Where tuning keeps what interfaces were.")
    ] = Path("/run/cni/tuning"),
    caches: Annotated[
        list[Path] | None,
        typer.Option("--cache-dir", metavar="DIR", help="Where libcni keeps results; may be repeated."),
    ] = None,
    run_dir: Annotated[
        Path, typer.Option("--run-dir", metavar="DIR", help="Where the daemon keeps what ends with the boot.")
    ] = Path("/run/nodeplug"),
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Free what containers left that are gone, for runtimes that never call GC.

    Addresses, masquerading, forwarded ports, rules, limits, backups and leases. Run it on the node, as root, where all
    of its network namespaces can be seen. A thing is freed if the daemon's records or libcni's cache name the namespace
    of its container, that is gone, and nothing shows that it is in use. A daemon that runs does this by itself.

    Example: `nodeplug net gc --dry-run`
    """
    from nodeplug_net.leftovers.evidence import CACHE_DIR, Evidence
    from nodeplug_net.leftovers.things import Places, end, things
    from nodeplug_net.undo import kernel_errors

    told = _reconciled(config, root, dry_run=dry_run)
    with kernel_errors():
        evidence = Evidence.gather(caches or (CACHE_DIR,), run_dir)
        verdicts = [evidence.judge(one) for one in things(Places(addresses, backups, run_dir), network)]
        ends = () if dry_run else ("left over", "unknown") if unknown else ("left over",)
        rows = [_thing(one, freed=one.state in ends and end(one.about, daemon=told is not None)) for one in verdicts]
    rows = [*(one for one in told or () if network in {"", one["network"]}), *rows]
    if as_json:
        print_json(rows)
    else:
        _list(rows, f"no address is reserved below {addresses}, and nothing else is left")


def _reconciled(config: Path, root: Path | None, *, dry_run: bool) -> list[dict[str, Any]] | None:
    """Let the daemon end whole attachments, or say which it would; None if no daemon runs."""
    try:
        answer = ask_daemon(
            config, root, "reconcile", *(["dry-run"] if dry_run else []), warn=False, patience=_PATIENCE
        )
    except PluginError as error:
        if isinstance(error, NotReady) or isinstance(error.__cause__, NotReady):  # with or without a configuration
            return None
        raise
    return [
        {
            "kind": "attachment",
            "name": _named(one),
            "address": "",
            **{key: one[key] for key in ("network", "container_id", "ifname", "state", "why")},
            "freed": one["ended"],
        }
        for one in answer["attachments"]
    ]


def _named(one: Mapping[str, Any]) -> str:
    """Name an attachment's plugins, and what they asked others to attach: `nodeplug-bridge blue net1`."""
    more = ", ".join(f"{each['claim']} {each['network']} {each['ifname']}" for each in one.get("delegated", ()))
    return " ".join(one["types"]) + (f" with {more}" if more else "")


def _thing(one: "Verdict", *, freed: bool) -> dict[str, Any]:
    about = one.about
    return {
        "kind": about.kind,
        "name": about.name,
        "address": "" if about.address is None else str(about.address),
        "network": about.whose.network,
        "container_id": about.whose.container_id,
        "ifname": about.whose.ifname,
        "state": one.state,
        "why": one.why,
        "freed": freed,
    }


def _list(rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    from rich.table import Table

    table = Table("KIND", "NAME", "NETWORK", "CONTAINER", "INTERFACE", "STATE", "WHY")
    for row in rows:
        state = "freed" if row["freed"] else row["state"]
        whose = (row["network"], row["container_id"], row["ifname"])
        table.add_row(row["kind"], row["name"], *whose, state, row["why"])
    if rows:
        show(table)
    else:
        print(nothing)  # noqa: T201 - a sentence, not a table


def _tell(rows: Sequence[Mapping[str, Any]], *, as_json: bool, applied: bool) -> None:
    if as_json:
        print_json(rows)
        return
    from rich.table import Table

    table = Table("NETWORK", "CONTAINER", "INTERFACE", "ADDRESS", "PORT", "WHAT", "WHOSE")
    for row in rows:
        if row["ended"]:
            state = "removed, its container is gone" if applied else "to be removed, its container is gone"
        else:
            state = "the reference's" if row["handed_over"] else "nodeplug's"
        whose = (row["network"], row["container_id"], row["ifname"])
        table.add_row(*whose, row["address"], row["port"], row["kind"], state)
    if rows:
        show(table)
    else:
        print("nodeplug has no rules of containers in this network namespace")  # noqa: T201 - a sentence, not a table
