"""`nodeplug install` and `nodeplug uninstall`.

Owns: their options, and what is shown of their reports.
Refuses: to decide what belongs where.
"""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from nodeplug.cli.group import say
from nodeplug.commands import DEFAULT, Config, Json, Root, print_json, show
from nodeplug.errors import PluginError


class CniVersion(StrEnum):
    """What `--cni-version` takes."""

    AUTO = "auto"
    FILE = "file"
    OLD = "1.0.0"
    NEW = "1.1.0"


def install(
    config: Config = DEFAULT,
    root: Root = None,
    as_json: Json = False,
    conflist: Annotated[
        list[Path] | None,
        typer.Option("--conflist", metavar="FILE", help="Also install this network configuration; repeatable."),
    ] = None,
    native: Annotated[
        bool | None,
        typer.Option(
            "--native/--script",
            help="Compile the entrypoints with this host's C compiler ($CC or cc), or never. "
            "Without either: `native_entrypoints`, which compiles where there is a compiler.",
            show_default=False,
        ),
    ] = None,
    cni_version: Annotated[
        CniVersion,
        typer.Option(
            "--cni-version",
            metavar="VERSION",
            help="The cniVersion of the configurations, 1.0.0 or 1.1.0: `auto` chooses what the node's runtime and the "
            "plugins understand, `file` keeps the file's own.",
        ),
    ] = CniVersion.AUTO,
    force: Annotated[
        bool, typer.Option("--force", help="Take back names that were nodeplug's and are another program's by now.")
    ] = False,
    remove_all: Annotated[
        bool, typer.Option("--remove-all", help="Remove every entrypoint although no plugin is enabled.")
    ] = False,
) -> None:
    """Install the entrypoints of every enabled plugin where the runtime and kubelet look for them.

    Names that belong to somebody else are not touched. Repeating it changes nothing; what an earlier installation
    made and no plugin claims any more is removed. A configuration without plugins is taken for a mistake: then nothing
    is removed unless `--remove-all` says so.

    Example: `nodeplug install --conflist configs/cni/10-nodeplug.conflist`
    """
    from nodeplug.config import ConfigError, read
    from nodeplug.effective import examine
    from nodeplug.install.deployment import deploy, entrypoints_present

    reading = read(config, root)
    examined = examine(reading)
    if examined.problems:
        end = "nothing was installed: a plugin that cannot be loaded would lose its entrypoints"
        raise ConfigError([*examined.problems, end])
    supervisor, inspected = reading.configuration.supervisor, examined.inspected
    left = [] if inspected.states or remove_all else entrypoints_present(supervisor.paths)
    if left:
        raise PluginError(
            f"{config} enables no plugin, so that these would be removed: {', '.join(map(str, left))}; nothing was "
            "changed; enable a plugin, or say --remove-all"
        )
    conflists = {path.name: _read(path) for path in conflist or ()}
    wanted = supervisor.native_entrypoints if native is None else native
    done = deploy(
        inspected.registry,
        supervisor.paths,
        native=wanted,
        conflists=conflists,
        cni_version=cni_version.value,
        force=force,
    )
    if done.entrypoints.warning:
        say(f"warning: {done.entrypoints.reason}; the Python scripts are installed instead")
    for warning in done.warnings:
        say(f"warning: {warning}")
    _show_report(done.as_dict(), as_json=as_json)


def uninstall(config: Config = DEFAULT, root: Root = None, as_json: Json = False) -> None:
    """Remove what `install` installed, and nothing else.

    A volume driver whose volumes are still mounted is kept, because kubelet unmounts through it: run it again later.

    Example: `nodeplug uninstall --json`
    """
    from nodeplug.config import load
    from nodeplug.install.deployment import withdraw

    _show_report(withdraw(load(config, root).supervisor.paths).as_dict(), as_json=as_json)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PluginError(f"cannot read {path}: {error.strerror}") from error


def _show_report(report: Mapping[str, Any], *, as_json: bool) -> None:
    from nodeplug import tables

    if as_json:
        print_json(report)
    else:
        show(tables.report(report))
