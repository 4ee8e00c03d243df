"""`nodeplug install` and `nodeplug uninstall`.

Owns: their options and output.
Refuses: to decide what belongs where.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nodeplug.cli.group import read_file, say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show
from nodeplug.contract.errors import InUse, InvalidRequest, PluginError

if TYPE_CHECKING:
    from nodeplug.config import Configuration, Reading
    from nodeplug.hosting.registry import Registry
    from nodeplug.install.systemd import Service


class CniVersion(StrEnum):
    """The values of `--cni-version`."""

    AUTO = "auto"
    FILE = "file"
    OLD = "1.0.0"
    NEW = "1.1.0"


Conflist = Annotated[
    list[Path] | None,
    typer.Option("--conflist", metavar="FILE", help="Also install this network configuration; repeatable."),
]
Native = Annotated[
    bool | None,
    typer.Option(
        "--native/--script",
        help="Compiled entrypoints, which a platform wheel brings along and this host's C compiler ($CC or cc) makes, "
        "or never. Without either: `native_entrypoints`, which takes them where there are any.",
        show_default=False,
    ),
]
Version = Annotated[
    CniVersion,
    typer.Option(
        "--cni-version",
        metavar="VERSION",
        help="The cniVersion of the configurations, 1.0.0 or 1.1.0: `auto` chooses what the node's runtime and the "
        "plugins understand, `file` keeps the file's own.",
    ),
]
Systemd = Annotated[
    bool,
    typer.Option("--systemd", help="Also the unit: systemd runs the daemon, now and at each start of the node."),
]
Force = Annotated[bool, typer.Option("--force", help="Take back names that nodeplug had and another program has now.")]
StopSystemd = Annotated[bool, typer.Option("--systemd", help="Then stop the daemon, and remove its unit.")]
RemoveAll = Annotated[bool, typer.Option("--remove-all", help="Remove every entrypoint although no plugin is enabled.")]


def install(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    conflist: Conflist = None,
    native: Native = None,
    cni_version: Version = CniVersion.AUTO,
    force: Force = False,
    remove_all: RemoveAll = False,
    systemd: Systemd = False,
) -> None:
    """Install the entrypoints of every enabled plugin where the runtime and kubelet look for them.

    Names that belong to somebody else are not touched. Repeating it changes nothing; what an earlier installation
    made and no plugin claims any more is removed. A configuration without plugins is taken for a mistake: then nothing
    is removed unless `--remove-all` says so.

    With `--systemd` the daemon is started first, so that no caller finds an entrypoint without it.

    Example: `nodeplug install --systemd --conflist configs/cni/10-nodeplug.conflist`
    """
    from nodeplug.config import read
    from nodeplug.install.deployment import deploy

    reading = read(config, root)
    supervisor = reading.configuration.supervisor
    registry = _loaded(reading, remove_all=remove_all)
    conflists = {path.name: read_file(path) for path in conflist or ()}
    service = _service(config, root) if systemd else None
    done = deploy(
        registry,
        supervisor.paths,
        native=supervisor.native_entrypoints if native is None else native,
        conflists=conflists,
        cni_version=cni_version.value,
        force=force,
    )
    for warning in done.warnings:
        say(f"warning: {warning}")
    told = done.as_dict()
    if service is not None:
        told = _with(told, service)
    _show_report(told, as_json=as_json)


def _service(config: Path, root: Path | None) -> "Service":
    from nodeplug.install.systemd import provide

    _refuse_root(root)
    return provide(config, DEFAULT)


def _refuse_root(root: Path | None) -> None:
    if root is not None:
        raise InvalidRequest("--systemd is for the node itself, and --root for another place: name one of the two")


def _with(told: Mapping[str, Any], service: "Service") -> dict[str, Any]:
    """Add what was done about the unit to what was done about entrypoints."""
    files = {word: [*paths, *told.get(word, [])] for word, paths in service.report.as_dict().items()}
    return {**told, **files, "systemd": service.as_dict()}


def _loaded(reading: "Reading", *, remove_all: bool) -> "Registry":
    """Load the plugins to install; a mistake would cost others their entrypoints.

    Raises:
        ConfigError: a plugin cannot be loaded.
        PluginError: no plugin is enabled, but entrypoints are installed and `remove_all` is not set.
    """
    from nodeplug.cli.effective import examine
    from nodeplug.config import ConfigError
    from nodeplug.install.deployment import entrypoints_present

    examined = examine(reading)
    if examined.problems:
        end = "nothing was installed: a plugin that cannot be loaded would lose its entrypoints"
        raise ConfigError([*examined.problems, end])
    left = [] if examined.registry.slots or remove_all else entrypoints_present(reading.configuration.supervisor.paths)
    if left:
        raise PluginError(
            f"{reading.places.main.path} enables no plugin, so that these would be removed: "
            f"{', '.join(map(str, left))}; nothing was changed; enable a plugin, or say --remove-all"
        )
    return examined.registry


def uninstall(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    systemd: StopSystemd = False,
    unused: Annotated[
        bool,
        typer.Option(
            "--unused", help="Only if the daemon knows of no pod that has a network, a volume or a device of it."
        ),
    ] = False,
) -> None:
    """Remove what `install` installed, and what a daemon with `[cluster]` has published; nothing else.

    A volume driver whose volumes are still mounted is kept, because kubelet unmounts through it: run it again later.
    So is the daemon, with `--systemd`, as long as there is such a driver.
    A runtime that finds no executable cannot end the networks of its pods: with --unused nothing is removed while there
    are any, and the exit status is 1. The daemon has to run then.

    Example: `nodeplug uninstall --unused`
    """
    from nodeplug.commands import ask_daemon
    from nodeplug.config import load
    from nodeplug.install.deployment import withdraw

    if systemd:
        _refuse_root(root)
    if unused and (used := still_used(ask_daemon(config, root, "status", warn=False))):
        raise InUse(f"pods use this node, so nothing was removed: {'; '.join(used)}; drain it first")
    configuration = load(config, root)
    report = withdraw(configuration.supervisor.paths)
    told: dict[str, Any] = report.as_dict()
    if systemd and report.kept:
        say("warning: the daemon stays: kubelet has to unmount through what is kept; run the same again later")
    elif systemd:
        from nodeplug.install.systemd import withdraw as stop

        told = _with(told, stop())
    _show_report(told, as_json=as_json)
    if configuration.cluster is not None and configuration.cluster.enabled:
        _withdraw_from_cluster(configuration, config, root)


def still_used(status: Mapping[str, Any]) -> list[str]:
    """Return what pods have of a node, in words; empty if they have nothing.

    Args:
        status: of the daemon.
    """
    sandboxes = {one["container_id"] for one in status["attachments"]}
    told = [f"networks of {len(sandboxes)} pods"] * bool(sandboxes)
    mounted = sum(len(one["targets"]) for one in status["volumes"])
    told += [f"{mounted} mounted volumes"] * bool(mounted)
    told += [f"{one['allocated']} of {one['resource']}" for one in status["resources"] if one["allocated"]]
    claims = sum(len(one["claims"]) for one in status.get("dra", ()))
    told += [f"{claims} prepared claims"] * bool(claims)
    told += [f"{status['spool']} DELs that wait"] * bool(status["spool"])
    return [*told, *(f"not known: {why}" for why in status["unknown"].values())]


def _withdraw_from_cluster(configuration: "Configuration", config: Path, root: Path | None) -> None:
    """Remove what was published; what keeps it from that is told, since the node may have lost its cluster already."""
    from nodeplug.cli.cluster import refuse_while_published, removed_of
    from nodeplug.config import node_name

    try:
        refuse_while_published(config, root)
        for one in removed_of(configuration, node_name(configuration.supervisor), None):
            say(f"removed from the cluster: {one}")
    except PluginError as error:
        say(f"warning: what this node has published stays: {error}; see `nodeplug cluster withdraw`")


def _show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    from nodeplug.cli import tables

    if as_json:
        print_json(report)
    else:
        show(tables.report(report))
