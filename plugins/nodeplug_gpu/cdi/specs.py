"""The CDI specs that we write, and why a card cannot be given to a container by its name.

Owns: one JSON file per kind, rewritten only when it would differ.
Refuses: to remove the file at the end: a container may be restarted while nodeplug does not run.

Source: Container Device Interface Specification; `/var/run/cdi` is for specs that change at run time.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug import Grant, Host, NotReady, read_bounded
from nodeplug_gpu.access import GpuDevice, NodePaths, cdi_names
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.cdi import driver_files
from nodeplug_gpu.cdi.document import ALL, Document, all_devices, device, edits, specification
from nodeplug_gpu.cdi.hooks import command, hooks
from nodeplug_gpu.cdi.names import SpecNames
from nodeplug_gpu.config import GpuConfig, Mig, Resource, advertises_mig
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.replaced_file import replace_file

PENDING: Final = "its CDI spec is not written yet"
_WRITTEN_AGAIN: Final = "nodeplug writes it again within seconds"
_BY_OTHERS: Final = (
    "run `nvidia-ctk cdi generate` with `--device-name-strategy=uuid`, or let nodeplug write a spec (cdi_write = true)"
)

Place = tuple[str, Path, bool]
"""A kind, the folder of its spec, and whether we write it."""


@dataclass(frozen=True, slots=True)
class _Named:
    """Something that a spec names.

    Attributes:
        resource: of the entry that advertises it.
        allocated: whether containers get this very name: where MIG instances are advertised, theirs, not the card's.
    """

    resource: str
    gpu: GpuDevice
    allocated: bool


@dataclass(slots=True)
class CdiSpecs:
    """Keeps the specs up to date. Called from one thread; any may call `not_ready_reason`, `require` and `fault`.

    Attributes:
        changed: called when a card becomes allocatable by its name, or ceases to be.
    """

    config: GpuConfig
    paths: NodePaths
    host: Host
    changed: Callable[[], None] = lambda: None
    _faults: Mapping[tuple[str, Uuid], str] = field(default_factory=dict)
    _complaint: str = ""
    _names: SpecNames = field(init=False)

    def __post_init__(self) -> None:
        own = [entry.access.cdi_folder for entry in self.config.resources]
        self._names = SpecNames(tuple(dict.fromkeys([*self.paths.cdi, *own])))

    def reconcile(self, inventory: Inventory) -> None:
        """Write what has changed, and look for all names; while the driver does not run the specs stay as they are."""
        if inventory.snapshot.state != "running":
            return
        whys: dict[tuple[str, Uuid], str] = {}
        for place, named in self._named(inventory).items():
            kind, _, ours = place
            version = inventory.snapshot.driver_version
            faults = self._update(place, {one.gpu for one in named}, version) if ours else {}
            for one in named:
                key = (one.resource, one.gpu.card.uuid)
                why = faults.get(one.gpu.uuid) or self._unknown_reason(kind, one.gpu.uuid, ours=ours)
                whys[key] = whys.get(key, "") or (why if one.allocated else "")
        changed, self._faults = whys != self._faults, whys
        self._complain(self.fault)
        if changed:
            self.changed()

    def stop(self) -> None:
        """Leave the files for containers that restart."""

    def not_ready_reason(self, entry: Resource, uuid: Uuid) -> str:
        """Return why a card cannot be allocated by its CDI name; empty when it can, or needs none."""
        return self._faults.get((entry.resource, uuid), PENDING) if entry.access.cdi != "none" else ""

    def require(self, entry: Resource, granted: Grant) -> None:
        """Look once more, before a container gets names: a spec may have gone since the last update.

        Raises:
            NotReady: the runtime would not know one of them, and the container would not start.
        """
        for kind, name in cdi_names(granted):
            if why := self._unknown_reason(kind, name, ours=entry.access.cdi_write):
                self.changed()
                raise NotReady(f"{entry.resource} cannot be given to a container by its CDI name: {why}")

    def _unknown_reason(self, kind: str, name: str, *, ours: bool) -> str:
        why = self._names.unknown_reason(kind, name)
        if why.startswith("no "):
            why = f"{why}; {_WRITTEN_AGAIN if ours else _BY_OTHERS}"
        return why

    def pending(self, inventory: Inventory) -> bool:
        """Whether a card waits for the next update, since its spec was not written before this one."""
        return any(member.reason == PENDING for pool in inventory.pools.values() for member in pool.members)

    @property
    def fault(self) -> str:
        """What is wrong with the specs, as one text; empty when nothing is."""
        return "; ".join(sorted({why for why in self._faults.values() if why}))

    def _named(self, inventory: Inventory) -> Mapping[Place, list[_Named]]:
        """Return what each kind names: every card, and every instance where MIG instances are advertised."""
        present = {card.uuid for card in inventory.snapshot.cards}
        found: dict[Place, list[_Named]] = {}
        for entry in self.config.resources:
            access = entry.access
            if access.cdi == "none":
                continue
            named = found.setdefault((access.cdi_kind, access.cdi_folder, access.cdi_write), [])
            for member in inventory.members_of(entry.resource):
                if member.card.uuid in present:
                    named.append(_Named(entry.resource, GpuDevice(member.card), not advertises_mig(entry)))
                    instances = member.card.instances if isinstance(entry, Mig) else ()
                    named += [
                        _Named(entry.resource, GpuDevice(member.card, one), advertises_mig(entry)) for one in instances
                    ]
        return found

    def _update(self, place: Place, gpus: Collection[GpuDevice], version: str) -> Mapping[str, str]:
        """Keep a spec up to date; return why devices, by UUID, cannot be allocated by their names."""
        kind, folder, _ = place
        path = folder / self._name(kind)
        try:
            common = self._edits(place, version)
        except NotReady as error:
            return {gpu.uuid: f"the CDI spec of {kind} stays as it is: {error.message}" for gpu in gpus}
        devices, faults = self._devices(kind, gpus)
        document = specification(kind, devices, common)
        try:
            if devices:
                _write(path, document)
            else:
                path.unlink(missing_ok=True)  # a spec without devices is invalid
            _remove_former(path, document)
        except OSError as error:
            why = f"the CDI spec of {kind} cannot be written: {error.filename or path}: {error.strerror or error}"
            known = _described(path, document)
            faults |= {one["name"]: why for one in devices if one not in known}
        return faults

    def _devices(self, kind: str, gpus: Collection[GpuDevice]) -> tuple[list[Document], dict[str, str]]:
        """Describe what can be described; also return why the rest cannot, by UUID."""
        found: dict[GpuDevice, Document] = {}
        faults: dict[str, str] = {}
        for gpu in sorted(gpus, key=lambda gpu: gpu.uuid):
            try:
                found[gpu] = device(gpu, self.paths)
            except NotReady as error:
                faults[gpu.uuid] = f"{kind}={gpu.uuid} cannot be described: {error.message}"
        return [*found.values(), *([all_devices(list(found), self.paths)] if found else [])], faults

    def _edits(self, place: Place, version: str) -> Document:
        """Return what every container gets.

        Raises:
            NotReady: the driver's libraries are not those of the running one, or the configured hook is not there.
        """
        root = self.config.driver_root
        if why := driver_files.other_version(root, version):
            raise NotReady(why)
        files = driver_files.find(root, version)
        made = hooks(command(self.config.cdi_hook, root, self.paths), files)
        ways = [one.access for one in self.config.resources if one.access.cdi != "none"]
        hidden = all(one.visible_devices == "none" for one in ways if (one.cdi_kind, one.cdi_folder, True) == place)
        return edits(files, {} if made else driver_files.libraries(root), made, self.paths, hidden=hidden)

    def _name(self, kind: str) -> str:
        return f"{re.sub(r'[^A-Za-z0-9.-]', '-', f'nodeplug-{self.host.plugin}-{kind}')}.json"

    def _complain(self, text: str) -> None:
        if text and text != self._complaint:
            self.host.log.warning("%s", text)
        self._complaint = text


def _write(path: Path, document: Document) -> None:
    replace_file(path, json.dumps(document, indent=1).encode())


def _remove_former(path: Path, document: Document) -> None:
    """Remove what sections of other names left: to the runtime, a device that two specs describe does not exist."""
    ours = {one["name"] for one in document["devices"]} - {ALL}
    for other in path.parent.glob("nodeplug-*.json"):
        try:
            found = json.loads(read_bounded(other))
            names = {one["name"] for one in found["devices"]}
            if other == path or found["kind"] != document["kind"]:
                continue
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if ours & names or names == {ALL}:
            other.unlink(missing_ok=True)
        elif ALL in names:
            _write(other, {**found, "devices": [one for one in found["devices"] if one["name"] != ALL]})


def _described(path: Path, document: Document) -> list[Any]:
    """Return the devices of the spec on disk, if its other edits equal those that could not be written."""
    try:
        found = json.loads(read_bounded(path))
        return list(found["devices"]) if found["containerEdits"] == document["containerEdits"] else []
    except (OSError, ValueError, KeyError, TypeError):
        return []
