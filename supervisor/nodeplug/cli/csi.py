"""`nodeplug csi manifests`, `status` and `forget-node`: volume drivers and the cluster.

Owns: their options and output.
Refuses: to change a cluster, but for what a lost node has left.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodeplug.cli.group import Subcommands, say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json
from nodeplug.contract.errors import InvalidRequest, NotReady

if TYPE_CHECKING:
    from nodeplug.config import Reading
    from nodeplug.csi.cluster import Cluster
    from nodeplug.csi.objects import Driver
    from nodeplug.kubeapi.access import Access

app = typer.Typer(cls=Subcommands, add_completion=False, rich_markup_mode="markdown", no_args_is_help=True)

Drivers = Annotated[
    list[str] | None,
    typer.Option(
        "--driver",
        metavar="NAME",
        help="Only this driver, such as `loopfile.nodeplug`; repeatable.",
        show_default="all",
    ),
]

Kubeconfig = Annotated[
    Path | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="How to reach the API server.",
        show_default="$KUBECONFIG, the pod's ServiceAccount, ~/.kube/config",
    ),
]

Sidecars = Annotated[
    bool,
    typer.Option(
        "--sidecars", help="Volumes are created by the standard external-provisioner, a DaemonSet per driver."
    ),
]
Snapshots = Annotated[
    bool | None,
    typer.Option(
        "--snapshots/--no-snapshots",
        help="Snapshots are taken by the standard csi-snapshotter, a DaemonSet per driver that has them.",
        show_default="with --sidecars",
    ),
]
Namespace = Annotated[str, typer.Option("--namespace", metavar="NAME", help="Of what creates volumes.")]
StorageClass = Annotated[
    str,
    typer.Option("--storage-class", metavar="NAME", help="Of the StorageClass.", show_default="the name of its driver"),
]


@app.callback()
def csi() -> None:
    """Tell a cluster of the volume drivers, and what it knows of them.

    Example: `nodeplug csi manifests | kubectl apply -f -`
    """


@app.command()
def manifests(
    driver: Drivers = None,
    sidecars: Sidecars = False,
    snapshots: Snapshots = None,
    namespace: Namespace = "kube-system",
    storage_class: StorageClass = "",
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Print what a cluster needs for the volume drivers of this configuration, to apply once.

    That is a CSIDriver for each; for those that create volumes a StorageClass, and the rights of who creates them; and
    with `--snapshots` who takes snapshots of them, and a VolumeSnapshotClass, which the cluster has to know already.
    Some fields can never be changed: the comments say which. Nothing is applied, and no daemon is asked.

    Example: `nodeplug csi manifests --driver loopfile.nodeplug --storage-class fast | kubectl apply -f -`
    """
    from nodeplug.config import read
    from nodeplug.csi.manifests import manifests as manifests_of
    from nodeplug.csi.objects import chosen
    from nodeplug.kubeapi.printed import as_list, as_yaml

    reading = read(config, root)
    drivers = chosen(drivers_in(reading), driver or ())
    classes = _classes(drivers, storage_class)
    if snapshots and not any(one.takes_snapshots for one in drivers):
        raise InvalidRequest("--snapshots is for drivers that take snapshots, and none does")
    supervisor = reading.configuration.supervisor
    made = manifests_of(
        drivers,
        # Objects are the cluster's: `--root` is where this node was put for a trial.
        _on_the_node(supervisor.paths.plugins_registry.parent, root),
        namespace,
        classes,
        sidecars=sidecars,
        snapshots=sidecars if snapshots is None else snapshots,
    )
    if not supervisor.csi:
        say("warning: the daemon serves no driver over CSI: say `csi = true` under [supervisor]")
    if as_json:
        print_json(as_list(made))
    else:
        print(as_yaml(made), end="")


def _classes(drivers: Iterable["Driver"], name: str) -> dict[str, str]:
    """Return the StorageClass of the driver that creates volumes; InvalidRequest if one is named, and it is not one."""
    provisioning = [one.name for one in drivers if one.provisions]
    if name and len(provisioning) != 1:
        there = f"these do: {', '.join(provisioning)}; choose one by --driver" if provisioning else "none does"
        raise InvalidRequest(f"--storage-class is for one driver that creates volumes, and {there}")
    return dict.fromkeys(provisioning, name) if name else {}


@app.command()
def status(
    driver: Drivers = None,
    kubeconfig: Kubeconfig = None,
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show what kubelet and the API server know of this node's volume drivers, and what to do where they are wrong.

    The configuration says what should be, the daemon what kubelet has said, and the API server the rest: CSIDriver,
    CSINode, StorageClasses, capacity and volumes of this node. Nothing is changed. The exit status is 0 when all is
    well, 3 when there is a problem, and 1 when the API server cannot be asked.

    Example: `nodeplug csi status --kubeconfig /etc/kubernetes/admin.conf`
    """
    import asyncio

    from nodeplug.cli import tables
    from nodeplug.cli.watching import NOT_READY
    from nodeplug.commands import show
    from nodeplug.config import read
    from nodeplug.csi.cluster import report
    from nodeplug.csi.objects import chosen
    from nodeplug.kubeapi.credentials import find

    reading = read(config, root)
    drivers = chosen(drivers_in(reading), driver or ())
    daemon = _daemon(reading, config, root)
    rows = {row["driver"]: row for row in daemon["csi"]} if "csi" in daemon else None
    seen = asyncio.run(_ask(find(kubeconfig), daemon["node"]))
    reports = [report(one, seen, None if rows is None else rows.get(one.name, {})) for one in drivers]
    answer = {"node": daemon["node"], "drivers": reports, "unknown": seen.unknown}
    if as_json:
        print_json(answer)
    else:
        show(tables.csi_cluster(answer))
    raise typer.Exit(NOT_READY if any(one["problems"] for one in reports) else 0)


def _daemon(reading: "Reading", config: Path, root: Path | None) -> dict[str, Any]:
    """Return the daemon's status; where it does not answer, the node's name alone."""
    from nodeplug.commands import ask_daemon
    from nodeplug.config import node_name

    try:
        return dict(ask_daemon(config, root, "status", warn=False))
    except NotReady as error:
        say(f"warning: {error}")
        return {"node": node_name(reading.configuration.supervisor)}


@app.command()
def forget_node(
    node: Annotated[str, typer.Argument(metavar="NODE", help="The node that is gone.")],
    apply: Annotated[bool, typer.Option("--apply", help="Do it; otherwise it is told what would be done.")] = False,
    kubeconfig: Kubeconfig = None,
    as_json: Json = False,
) -> None:
    """Remove what a lost node has left: volumes that nobody can delete any more, and the room that it had.

    Their data is lost with the node. A node that the cluster still has is refused, and a volume is kept while a claim
    has it. Needs no daemon and no configuration.

    Example: `nodeplug csi forget-node node-7 --apply`
    """
    import asyncio
    from dataclasses import asdict

    from nodeplug.cli import tables
    from nodeplug.commands import show
    from nodeplug.kubeapi.client import Client
    from nodeplug.kubeapi.credentials import Credentials, find
    from nodeplug.provisioner.lost_node import forget

    async def ask() -> list[dict[str, str]]:
        async with Client(Credentials(find(kubeconfig))) as client:
            return [asdict(one) for one in await forget(client, node, apply=apply)]

    left = asyncio.run(ask())
    if as_json:
        print_json({"node": node, "left": left})
    else:
        show(tables.left_by_node(node, left))


async def _ask(access: "Access", node: str) -> "Cluster":
    from nodeplug.csi.cluster import look
    from nodeplug.kubeapi.client import Client
    from nodeplug.kubeapi.credentials import Credentials

    async with Client(Credentials(access)) as client:
        return await look(client, node)


def _on_the_node(path: Path, root: Path | None) -> Path:
    return Path("/", path.relative_to(root)) if root is not None and path.is_relative_to(root) else path


def drivers_in(reading: "Reading") -> "list[Driver]":
    """Load the plugins and return their drivers; says why a claim has none.

    Raises:
        ConfigError: a plugin cannot be loaded.
        PluginError: there is no driver.
    """
    from nodeplug.cli.effective import examine
    from nodeplug.config import ConfigError
    from nodeplug.contract.errors import NotFound
    from nodeplug.contract.values import VolumeClaim
    from nodeplug.csi.objects import drivers_of

    examined = examine(reading)
    if examined.problems:
        raise ConfigError(examined.problems)
    drivers, refused = drivers_of(examined.registry.claimed(VolumeClaim))
    for reason in refused:
        say(f"warning: {reason}")
    if not drivers:
        raise NotFound(f"{reading.places.main.path} enables no plugin with a volume driver that CSI can name")
    return drivers
