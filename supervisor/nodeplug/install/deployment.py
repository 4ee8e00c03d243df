"""From claims to entrypoint scripts on the node.

Owns: which names a set of loaded plugins needs installed, and loading a configuration without starting anything, which
is all that `install`, `plugins` and `check-config` need.
Refuses: to touch files itself (see `nodeplug.install.files`).
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Never

from nodeplug.config import Configuration, Paths, node_name
from nodeplug.errors import NotSupported
from nodeplug.flex.codec import capabilities_file
from nodeplug.host import Host
from nodeplug.install.files import Report, drivers_in_use, install, uninstall
from nodeplug.install.native import compile_scripts
from nodeplug.install.ownership import Folders
from nodeplug.install.scripts import Scripts
from nodeplug.journal import Journal, file_name, read_boot_id
from nodeplug.lifecycle import Lifecycle, PluginState
from nodeplug.mounts import mounts
from nodeplug.registry import Registry
from nodeplug.runner import Runner


@dataclass(frozen=True, slots=True)
class Inspected:
    """A configuration whose plugins are constructed and not started."""

    registry: Registry
    states: Mapping[str, PluginState]

    @property
    def refused(self) -> dict[str, str]:
        """Why plugins cannot be loaded, by section name."""
        return {name: state.reason for name, state in self.states.items() if state.loaded is None}


def inspect(configuration: Configuration) -> Inspected:
    """Load every enabled plugin far enough to know its claims and hooks; start nothing, write nothing."""

    def make_host(name: str) -> Host:
        paths = configuration.supervisor.paths
        return Host(
            plugin=name,
            node_name=node_name(configuration.supervisor),
            boot_id=read_boot_id(),
            log=logging.LoggerAdapter(logging.getLogger(f"nodeplug.plugin.{name}"), {"plugin": name}),
            journal=Journal(paths.journal / file_name(name)),
            state_dir=paths.state / "plugins" / file_name(name),
            run_dir=paths.run / "plugins" / file_name(name),
            _refresh=lambda _: None,
            _delegate=_not_here,
        )

    lifecycle = Lifecycle(Registry(), Runner(), make_host)
    lifecycle.load_all({name: section for name, section in configuration.plugins.items() if section.enabled})
    return Inspected(lifecycle.registry, lifecycle.states)


def _not_here(*_: Any, **__: Any) -> Never:
    raise NotSupported("plugins are only inspected here; `nodeplug serve` runs them")


def folders(paths: Paths) -> Folders:
    """Return where scripts and configurations are installed."""
    return Folders(cni_bin=paths.cni_bin, cni_conf=paths.cni_conf, flex=paths.flexvolume)


def deploy(
    registry: Registry,
    paths: Paths,
    *,
    native: bool = False,
    conflists: Mapping[str, bytes] | None = None,
    prune: bool = True,
) -> Report:
    """Install the scripts of every claim, and remove those of claims that are gone.

    Args:
        registry: the loaded plugins.
        paths: of the node.
        native: compile the entrypoints instead of installing the scripts.
        conflists: by file name, network configurations to install as well.
        prune: False while a plugin is refused: its claims are unknown, and a runtime that finds no executable can
            never DEL its containers.

    Raises:
        PluginError: see `install.files.install` and `install.native.compile_scripts`; without a compiler nothing
            was changed.
    """
    render = compile_scripts if native else Scripts.render
    drivers = {route.claim.name: capabilities_file(route.claim, route.hooks) for route in registry.routes("volume")}
    return install(
        cni=[route.claim.name for route in registry.routes("cni")],
        drivers=drivers,
        folders=folders(paths),
        scripts=render(socket=paths.exec_socket, spool=paths.spool),
        conflists=conflists,
        prune=prune,
        in_use=drivers_in_use(mount.target for mount in mounts()),
    )


def withdraw(paths: Paths) -> Report:
    """Remove everything that `deploy` installed, except drivers that still have mounts.

    Raises:
        PluginError: see `install.files.uninstall`.
    """
    return uninstall(folders=folders(paths), in_use=drivers_in_use(mount.target for mount in mounts()))
