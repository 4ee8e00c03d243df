"""From claims to entrypoint scripts on the node.

Owns: which names the loaded plugins need installed, whether entrypoints are compiled, and loading a configuration
without starting anything (for `install`, `plugins` and `check-config`).
Refuses: to touch files itself (see `nodeplug.install.files`).
"""

import asyncio
import logging
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal, Never

from nodeplug.config import Configuration, Paths, node_name
from nodeplug.config.mistakes import Location, told
from nodeplug.contract.errors import NotFound, NotSupported, PluginError
from nodeplug.contract.host import Host
from nodeplug.contract.journal import Journal, file_name, read_boot_id
from nodeplug.contract.values import CniClaim, VolumeClaim
from nodeplug.flex.codec import capabilities_file
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.plugin_users import PluginUsers
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.install.conflists import Wanted, choose, not_first
from nodeplug.install.drivers import drivers_in_use
from nodeplug.install.files import install, uninstall
from nodeplug.install.native import compile_one, compiler
from nodeplug.install.needs import unmet
from nodeplug.install.ownership import folder_name, is_foreign, our_drivers, our_entrypoints
from nodeplug.install.prebuilt import prebuilt
from nodeplug.install.report import Report
from nodeplug.install.scripts import PROGRAM, Scripts, led_by
from nodeplug.install.upkeep import read_record, take_stock, write_record

Native = bool | Literal["auto"]
"""Whether to compile the entrypoints: always, never, or if the node has a compiler."""
_CACHE: Final = "compiled"
_INSTEAD: Final = "with native_entrypoints = false, or --script, the Python scripts do the same job"


@dataclass(frozen=True, slots=True)
class Deployment:
    """What `deploy` did, and why the entrypoints are of their kind."""

    report: Report
    kind: Literal["native", "script"]
    reason: str
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        told = {"notes": list(self.notes), "warnings": list(self.warnings)}
        return self.report.as_dict() | told | {"entrypoints": {"kind": self.kind, "reason": self.reason}}

    def __str__(self) -> str:
        return f"entrypoints: {self.kind} ({self.reason}): {self.report}"

    def tell(self, log: logging.Logger) -> None:
        """Log it."""
        for warning in self.warnings:
            log.warning("%s", warning)
        for note in self.notes:
            log.info("%s", note)
        log.info("%s", self)


def inspect(configuration: Configuration, tell: Callable[[Location, str], str] = told) -> Registry:
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

    users = PluginUsers(configuration.supervisor.paths, configuration.supervisor.plugin_user)
    lifecycle = Lifecycle(Registry(), Runner(), make_host, tell=tell, privileges=users.privileges, cgroups=None)
    enabled = {name: section for name, section in configuration.plugins.items() if section.enabled}
    asyncio.run(lifecycle.load_all(enabled))  # in threads with deadlines: a constructor may block
    return lifecycle.registry


def _not_here(*_: Any, **__: Any) -> Never:
    raise NotSupported("plugins are only inspected here; `nodeplug serve` runs them")


def deploy(
    registry: Registry,
    paths: Paths,
    *,
    native: Native = "auto",
    conflists: Mapping[str, bytes] | None = None,
    cni_version: Wanted = "auto",
    prune: bool = True,
    force: bool = False,
    only_present: bool = False,
    mend: Collection[Path] = (),
) -> Deployment:
    """Install the entrypoints of every claim, and remove those whose claims are gone.

    Args:
        registry: the loaded plugins.
        paths: of the node.
        native: whether to compile the entrypoints.
        conflists: network configurations to install as well, by file name.
        cni_version: see `install.conflists`.
        prune: False while a plugin is refused: its claims are unknown, and without an executable a runtime can never
            DEL its containers.
        force: take back names that were ours and have been replaced.
        only_present: only what is in the record already, for repairs.
        mend: files that were ours and no longer bear our mark.

    Raises:
        PluginError: see `install.files.install`; or `native` is True and compiling fails, in which case nothing was
            changed.
    """
    record = read_record(paths) or {}
    asked = _ask(registry, paths)
    if only_present:
        asked = asked.already_in(record, paths, mend)
        native = native if any(path.name.startswith(PROGRAM) for path in record) else False  # as it was installed
    homes = [paths.cni_bin, *(paths.flexvolume / folder_name(driver) for driver in asked.drivers)]
    scripts, reason, warnings = _entrypoints(paths, native, homes)
    lists = {name: choose(name, data, paths, asked.claims, cni_version) for name, data in (conflists or {}).items()}
    report = install(
        cni=asked.names,
        drivers=asked.drivers,
        paths=paths,
        scripts=scripts,
        conflists={name: chosen for name, (chosen, _) in lists.items()},
        prune=prune,
        in_use=drivers_in_use(),
        retake=record if force else mend,
    )
    _record_installed(paths, record, asked.claims)
    notes = [f"{paths.cni_bin / name} is another program's, and stays" for name in asked.yielded]
    notes += [why for _, why in lists.values() if why]
    warnings += [*filter(None, [not_first(lists, paths.cni_conf)]), *unmet(paths, asked.claims)]
    return Deployment(report, "native" if scripts.cni_program else "script", reason, notes, warnings)


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the loaded plugins need installed: all `claims` except `yielded` ones, whose names are taken."""

    claims: Sequence[str]
    names: Sequence[str]
    yielded: Sequence[str]
    drivers: Mapping[str, bytes]

    def already_in(self, record: Collection[Path], paths: Paths, mend: Collection[Path]) -> "_Asked":
        """Return the part that is installed already, without names taken since, unless they are in `mend`."""
        places = {name: paths.cni_bin / name for name in self.names}
        names = [name for name, path in places.items() if path in record and (path in mend or not is_foreign(path))]
        known = {path.parent.name for path in record}
        drivers = {name: answer for name, answer in self.drivers.items() if folder_name(name) in known}
        return replace(self, names=names, drivers=drivers)


def _ask(registry: Registry, paths: Paths) -> _Asked:
    drivers = {claim.name: capabilities_file(claim, hooks) for claim, hooks in registry.claimed(VolumeClaim)}
    cni = {claim.name: claim for claim, _ in registry.claimed(CniClaim)}
    yielded = [name for name, claim in cni.items() if claim.gives_way and is_foreign(paths.cni_bin / name)]
    return _Asked([*cni], [name for name in cni if name not in yielded], yielded, drivers)


def _record_installed(paths: Paths, record: Mapping[Path, str], claims: Collection[str]) -> None:
    """Write down what is installed now.

    Names of ours that were taken since stay in the record, so that they are reported and can be taken back. The disk is
    read only once: with two reads, a name replaced in between would be neither ours nor lost.
    """
    stock = take_stock(paths)
    lost = {path: digest for path, digest in record.items() if path.name in claims and path not in stock}
    write_record(paths, lost | stock)


def _entrypoints(paths: Paths, native: Native, places: Iterable[Path]) -> tuple[Scripts, str, list[str]]:
    """Render the entrypoints, compiled or not; return them with the reason, and a warning if compiling failed.

    `places` are the folders of the scripts: a script's first line holds the path of its compiled program, which must
    fit.
    """
    scripts = Scripts.render(socket=paths.exec_socket, spool=paths.spool)
    if native is False:
        return scripts, "compiled ones are not wanted", []
    try:
        for folder in places:
            led_by(b"", folder / f"{PROGRAM}{'0' * 12}")
    except PluginError as error:
        if native is True:
            raise type(error)(f"{error}; {_INSTEAD}") from error
        return scripts, str(error), [f"{error}; the Python scripts are installed instead"]
    why: list[PluginError] = []
    for find in (_brought, _made):
        try:
            (cni, flex), how = find(paths)
        except PluginError as error:
            why.append(error)
        else:
            scripts = replace(scripts, cni_program=cni, flex_program=flex)
            return scripts, how, [f"{error}; they were {how}" for error in why if not isinstance(error, NotFound)]
    reason = "; ".join(map(str, why))
    if native is True:
        raise type(why[-1])(f"{reason}; {_INSTEAD}")
    worse = [error for error in why if not isinstance(error, NotFound)]
    return scripts, reason, [f"{error}; the Python scripts are installed instead" for error in worse]


def _brought(paths: Paths) -> tuple[tuple[bytes, bytes], str]:
    machine = os.uname().machine
    return prebuilt(paths, machine), f"built in advance for {machine}"


def _made(paths: Paths) -> tuple[tuple[bytes, bytes], str]:
    cni, flex = (
        compile_one(flex=flex, socket=paths.exec_socket, spool=paths.spool, cache=paths.state / _CACHE)
        for flex in (False, True)
    )
    return (cni, flex), f"compiled with {compiler()[0]}"


def entrypoints_present(paths: Paths) -> list[Path]:
    """Return the installed entrypoints: CNI executables and driver folders."""
    return [*our_entrypoints(paths.cni_bin), *our_drivers(paths.flexvolume)]


def withdraw(paths: Paths) -> Report:
    """Remove everything that `deploy` installed, except drivers that still have mounts."""
    report = uninstall(paths, in_use=drivers_in_use())
    shutil.rmtree(paths.state / _CACHE, ignore_errors=True)
    write_record(paths, take_stock(paths))
    return report
