"""The entrypoints of a running daemon: installed when it starts and reloads, checked and repaired in between.

Owns: when to install, checking the installed files every few seconds, repairing ours, and what `status` and `/readyz`
report about them.
Refuses: to block the loop (checks run in a thread), to overwrite a foreign program, and to repair at the first check: a
manual installation replaces files and record one after the other.
"""

import asyncio
import logging
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.config import Paths, Supervisor
from nodeplug.contract.errors import PluginError
from nodeplug.contract.values import CniClaim
from nodeplug.hosting.registry import Registry
from nodeplug.install.deployment import deploy, entrypoints_present
from nodeplug.install.needs import unmet
from nodeplug.install.ownership import folder_name, installed_kind
from nodeplug.install.scripts import PROGRAM
from nodeplug.install.upkeep import Fault, Inspection, Record, read_record, take_stock, write_record
from nodeplug.process.lane import PATIENCE, Lane, Unanswered

LOG: Final = logging.getLogger(__name__)
INTERVAL: Final = 5.0
"""Seconds between two checks; each is a few stat(2) and one readdir while nothing changes."""
_LOOK_PATIENCE: Final = 10.0
_SECONDS: Final = re.compile(r"\(for \d+ s\)")


@dataclass(slots=True)
class Keeper:
    """Looks after the entrypoints, on the event loop only. The settings and the drop-in folder never change."""

    registry: Registry
    supervisor: Supervisor
    drop_ins: Path | None = None
    reason: str = ""
    _problems: tuple[str, ...] = ()
    _seen: frozenset[Fault] = frozenset()
    _inspection: Inspection = field(default_factory=Inspection)
    _kind: str = ""
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _looks: Lane = field(default_factory=lambda: Lane("the folder of an entrypoint", _LOOK_PATIENCE))
    _kinds: Lane = field(default_factory=lambda: Lane("the folder of an entrypoint"))
    _deployments: Lane = field(default_factory=lambda: Lane("the installation of the entrypoints", None))

    @property
    def problem(self) -> str:
        """Why callers cannot be served although every plugin runs, or an empty string."""
        return "; ".join(self._problems)

    async def install(self) -> None:
        """Install the entrypoints of all claims, if configured."""
        if not self.supervisor.install:
            return
        slots = self.registry.slots.values()
        # Without any plugin nothing is removed: the configuration is more likely wrong than intended.
        if not slots:
            LOG.warning("no plugin is enabled: entrypoints stay; `nodeplug install --remove-all` removes them")
        known = bool(slots) and all(slot.loaded is not None for slot in slots)
        async with self._turn:
            await self._deploy(prune=known)

    async def look(self) -> None:
        """Compare what is installed with what should be, repair our files, and report the rest."""
        try:
            await self._look()
        except Unanswered as error:
            self._say((str(error),))

    async def _look(self) -> None:
        claims, drivers = self._claims()
        if not self.registry.slots:  # nobody serves what is installed
            self._say(await self._looks.run(self._unserved))
            return
        async with self._turn:
            faults, problems = await self._looks.run(lambda: self._examine(claims, drivers))
            lasting = [fault for fault in faults if fault in self._seen and fault.kind != "foreign"]
            self._seen = frozenset(faults)
            if lasting:
                LOG.warning("repairing the entrypoints: %s", "; ".join(f"{one.path} is {one.kind}" for one in lasting))
                torn = [fault.path for fault in lasting]
                await self._deploy(prune=False, only_present=not self.supervisor.install, mend=torn)
                faults, problems = await self._looks.run(lambda: self._examine(claims, drivers))
        self._say((*map(str, faults), *problems))

    def _say(self, told: tuple[str, ...]) -> None:
        # A problem of which only the waiting time has changed is not logged again.
        before = {_SECONDS.sub("", text) for text in self._problems}
        for text in told:
            if _SECONDS.sub("", text) not in before:
                LOG.warning("%s", text)
        self._problems = told

    async def as_dict(self) -> dict[str, Any]:
        """Describe the entrypoints as they are now, or as last seen while an installation or a check takes long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                if not self._turn.locked():
                    await self.look()
        with suppress(Unanswered):
            self._kind = await self._kinds.run(lambda: installed_kind(self.supervisor.paths))
        return {"kind": self._kind, "reason": self.reason, "problems": list(self._problems)}

    def _claims(self) -> tuple[dict[str, CniClaim], set[str]]:
        """Return the CNI claims and the names of the driver folders; runs on the loop."""
        cni = {claim.name: claim for claim, _ in self.registry.claimed(CniClaim)}
        return cni, {folder_name(route.claim.name) for route in self.registry.routes("volume")}

    async def _deploy(self, **how: Any) -> None:
        try:
            done = await self._deployments.run(
                lambda: deploy(self.registry, self.supervisor.paths, native=self.supervisor.native_entrypoints, **how)
            )
        except PluginError as error:
            LOG.error("the entrypoints cannot be installed: %s", error)
            return
        self.reason = done.reason
        done.tell(LOG)

    def _unserved(self) -> tuple[str, ...]:
        """Return which entrypoints fail every call while no plugin is enabled."""
        try:
            present = entrypoints_present(self.supervisor.paths)
        except OSError as error:
            return (f"the entrypoints cannot be read: {error}",)
        if not present:
            return ()
        where = "in the main file"
        if self.drop_ins is not None:
            absent = "" if self.drop_ins.is_dir() else ", which does not exist"
            where = f"in the main file or in the drop-in folder {self.drop_ins}{absent}"
        found = f"{len(present)}, such as {present[0]}"
        told = (
            f"no plugin is enabled, and entrypoints of nodeplug are installed ({found}), so that every call of them "
            f"fails; enable the plugins {where}; or `nodeplug install --remove-all` removes the entrypoints"
        )
        return (told,)

    def _examine(self, claims: Mapping[str, CniClaim], drivers: Collection[str]) -> tuple[list[Fault], list[str]]:
        paths = self.supervisor.paths
        try:
            record = read_record(paths)
            if record is None and (record := take_stock(paths)):  # installed by a version before the record
                write_record(paths, record)
        except OSError as error:
            return [], [f"the entrypoints cannot be read: {error}"]
        yielded = {paths.cni_bin / name for name, claim in claims.items() if claim.gives_way}
        faults = self._inspection.faults(_claimed(record or {}, paths, claims, drivers))
        faults = [fault for fault in faults if fault.kind != "foreign" or fault.path not in yielded]
        return faults, unmet(paths, claims, {fault.path for fault in faults})


def _claimed(record: Record, paths: Paths, claims: Mapping[str, CniClaim], drivers: Collection[str]) -> Record:
    """Return the part of the record that is still claimed; the rest may be removed."""
    folders = {paths.flexvolume / driver for driver in drivers}
    if any(paths.cni_bin / name in record for name in claims):
        folders.add(paths.cni_bin)

    def is_needed(path: Path) -> bool:
        return path.parent in folders and (
            path.parent != paths.cni_bin or path.name in claims or path.name.startswith(PROGRAM)
        )

    return {path: digest for path, digest in record.items() if is_needed(path)}
