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

from nodeplug.commands import Json, print_json, show
from nodeplug_net import DATA_DIR

if TYPE_CHECKING:
    from nodeplug_net.ipam.leftovers import Verdict

RUN_DIR: Final = Path("/run/nodeplug")
"""The default of `run_dir` in `[supervisor]`."""

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
        if apply:
            found.apply(backend.value, log)
        strays = found.strays(log) if apply else []
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
    caches: Annotated[
        list[Path] | None,
        typer.Option("--cache-dir", metavar="DIR", help="Where libcni keeps results; may be repeated."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Free addresses of host-local whose containers are gone, for runtimes that never call GC.

    Run it on the node, as root, where all of its network namespaces can be seen. An address is freed if libcni's cache
    names the namespace of its container, that is gone, and no namespace has the address.

    Example: `nodeplug net gc --dry-run`
    """
    from nodeplug_net.ipam import leftovers
    from nodeplug_net.undo import kernel_errors

    with kernel_errors():
        evidence = leftovers.Evidence.gather(caches or (leftovers.CACHE_DIR,))
        verdicts = [evidence.judge(one) for one in leftovers.reservations(addresses, network)]
    ends = () if dry_run else ("left over", "unknown") if unknown else ("left over",)
    rows = [
        _reservation(one, freed=one.state in ends and leftovers.free(addresses, one.reservation)) for one in verdicts
    ]
    if as_json:
        print_json(rows)
    else:
        _list(rows, f"no address is reserved below {addresses}")


def _reservation(one: "Verdict", *, freed: bool) -> dict[str, Any]:
    container, ifname = one.reservation.owner
    return {
        "network": one.reservation.network,
        "address": str(one.reservation.address),
        "container_id": container,
        "ifname": ifname,
        "state": one.state,
        "why": one.why,
        "freed": freed,
    }


def _list(rows: Sequence[Mapping[str, Any]], nothing: str) -> None:
    from rich.table import Table

    table = Table("NETWORK", "ADDRESS", "CONTAINER", "INTERFACE", "STATE", "WHY")
    for row in rows:
        state = "freed" if row["freed"] else row["state"]
        table.add_row(row["network"], row["address"], row["container_id"], row["ifname"], state, row["why"])
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
