"""The CDI spec: what a runtime adds to a container that names one of our devices.

Owns: one JSON file per plugin section and kind, written when it would differ, and the libraries that it mounts.
Refuses: hooks (nvidia-ctk has those), and to remove the file at the end: a container may be started again while
nodeplug is away.

Source: Container Device Interface Specification, version 0.5.0; `/var/run/cdi` is for specs that change at run time.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug import Host, NotReady
from nodeplug_gpu.access import NodePaths, Part, device_nodes
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.config import Access, GpuConfig, Mig, advertises_mig
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.pool import Entry

VERSION: Final = "0.5.0"
PENDING: Final = "its CDI spec is not written yet"
LIBRARIES: Final = "/usr/local/nvidia/lib64"
"""Where NVIDIA's images look for the driver (their LD_LIBRARY_PATH); the libraries of the host's driver go there."""
_FOLDERS: Final = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib")
_WANTED: Final = re.compile(
    r"(libcuda|libnvidia-ml|libnvidia-ptxjitcompiler|libnvidia-nvvm|libcudadebugger|libnvidia-encode|libnvcuvid"
    r"|libnvidia-opencl)\.so\.(1|4)"
)


Place = tuple[str, Path]
"""A kind, and the folder of its spec."""


@dataclass(frozen=True, slots=True)
class _Named:
    """Something that a spec names.

    Attributes:
        resource: of the entry that sells it.
        granted: whether containers get this very name: of a card that is sold by instances these, not the card.
    """

    resource: str
    part: Part
    granted: bool


@dataclass(slots=True)
class CdiSpecs:
    """Follows the inventory. Called in one thread; `not_ready_reason` and `fault` may be called by any.

    Attributes:
        changed: called when a card can be granted by its name from now on, or no longer.
    """

    config: GpuConfig
    paths: NodePaths
    host: Host
    changed: Callable[[], None] = lambda: None
    _whys: Mapping[tuple[str, Uuid], str] = field(default_factory=dict)
    _complaint: str = ""

    def reconcile(self, inventory: Inventory) -> None:
        """Write what is new; while the driver is away the specs stay as they are."""
        if inventory.snapshot.state != "running":
            return
        whys: dict[tuple[str, Uuid], str] = {}
        for place, named in self._named(inventory).items():
            faults = self._kept(place, [one.part for one in named])
            for one in named:
                key = (one.resource, one.part.card.uuid)
                whys[key] = whys.get(key, "") or (faults.get(one.part.uuid, "") if one.granted else "")
        changed, self._whys = whys != self._whys, whys
        self._complain(self.fault)
        if changed:
            self.changed()

    def stop(self) -> None:
        """Leave the files to containers that start again."""

    def not_ready_reason(self, entry: Entry, uuid: Uuid) -> str:
        """Return why a card cannot be granted by its CDI name; empty when it can, or needs none."""
        return self._whys.get((entry.resource, uuid), PENDING) if _writes(entry.access) else ""

    def pending(self, inventory: Inventory) -> bool:
        """Whether a card waits for the next look, since its spec was not written before this one."""
        return any(member.reason == PENDING for pool in inventory.pools.values() for member in pool.members)

    @property
    def fault(self) -> str:
        """What is wrong with the specs, as one text; empty when nothing is."""
        return "; ".join(sorted({why for why in self._whys.values() if why}))

    def _named(self, inventory: Inventory) -> Mapping[Place, list[_Named]]:
        """Return what each kind names: every card, and every instance of those sold by instances."""
        present = {card.uuid for card in inventory.snapshot.cards}
        found: dict[Place, list[_Named]] = {}
        for entry in self.config.resources:
            if not _writes(entry.access):
                continue
            named = found.setdefault((entry.access.cdi_kind, entry.access.cdi_folder), [])
            for member in inventory.members_of(entry.resource):
                if member.card.uuid in present:
                    named.append(_Named(entry.resource, Part(member.card), not advertises_mig(entry)))
                    instances = member.card.instances if isinstance(entry, Mig) else ()
                    named += [
                        _Named(entry.resource, Part(member.card, one), advertises_mig(entry)) for one in instances
                    ]
        return found

    def _kept(self, place: Place, parts: Iterable[Part]) -> Mapping[str, str]:
        """Keep a spec true; return why the names of parts, by UUID, cannot be granted."""
        kind, folder = place
        path = folder / self._name(kind)
        devices, faults = [], {}
        for part in sorted(set(parts), key=lambda part: part.uuid):
            try:
                devices.append(_device(part, self.paths))
            except NotReady as error:
                faults[part.uuid] = f"{kind}={part.uuid} cannot be described: {error.message}"
        document = specification(kind, devices, self.config.driver_root)
        try:
            self._write(path, document)
        except OSError as error:
            why = f"the CDI spec of {kind} cannot be written: {error.filename or path}: {error.strerror or error}"
            known = _described(path, document)
            faults |= {device["name"]: why for device in devices if device not in known}
        return faults

    def _name(self, kind: str) -> str:
        return f"{re.sub(r'[^A-Za-z0-9.-]', '-', f'nodeplug-{self.host.plugin}-{kind}')}.json"

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        """Replace the file in one step: the runtime reads the folder at any time."""
        data = json.dumps(document, indent=1).encode()
        if _read(path) == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")  # the runtime reads *.json alone
        try:
            temporary.write_bytes(data)
            temporary.chmod(0o644)
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)

    def _complain(self, text: str) -> None:
        if text and text != self._complaint:
            self.host.log.warning("%s", text)
        self._complaint = text


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _writes(access: Access) -> bool:
    return access.cdi != "none" and access.cdi_write


def specification(kind: str, devices: Iterable[Mapping[str, Any]], driver_root: Path) -> Mapping[str, Any]:
    """Return the document.

    Args:
        kind: vendor and class.
        devices: cards and instances, as the document has them.
        driver_root: where the driver's libraries are.
    """
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": list(devices),
        "containerEdits": {"mounts": _mounts(driver_root)},
    }


def _device(part: Part, paths: NodePaths) -> Mapping[str, Any]:
    """Describe a card or an instance by its UUID.

    Raises:
        NotReady: a device node is missing.
    """
    return {"name": part.uuid, "containerEdits": {"deviceNodes": _nodes([part], paths)}}


def _described(path: Path, document: Mapping[str, Any]) -> list[Any]:
    """Return the devices of the spec on disk, where it is as good as the one that could not be written."""
    try:
        found = json.loads(_read(path) or b"")
        return list(found["devices"]) if found["containerEdits"] == document["containerEdits"] else []
    except (ValueError, KeyError, TypeError):
        return []


def _nodes(parts: list[Part], paths: NodePaths) -> list[Mapping[str, str]]:
    return [
        {"path": node.container_path, "hostPath": node.host_path, "permissions": "rw"}
        for node in device_nodes(parts, paths)
    ]


def libraries(driver_root: Path) -> Mapping[str, Path]:
    """Return the driver's own libraries by their SONAMEs: of a whole file system, nothing but these."""
    found: dict[str, Path] = {}
    for folder in _FOLDERS:
        for path in sorted((driver_root / folder).glob("lib*.so.*")):
            if _WANTED.fullmatch(path.name):
                found.setdefault(path.name, path)
    return dict(sorted(found.items()))


def _mounts(driver_root: Path) -> list[Mapping[str, Any]]:
    """Mount the libraries by their SONAMEs, so that no cache of the linker needs to be made."""
    return [
        {"hostPath": str(path), "containerPath": f"{LIBRARIES}/{name}", "options": ["ro", "nosuid", "nodev", "bind"]}
        for name, path in libraries(driver_root).items()
    ]
