"""The CDI spec: what a runtime adds to a container that names one of our devices.

Owns: one JSON file per plugin section and kind, written when it would differ, and the libraries that it mounts.
Refuses: hooks (nvidia-ctk has those), and to remove the file at the end: a container may be started again while
nodeplug is away.

Source: Container Device Interface Specification, version 0.5.0; `/var/run/cdi` is for specs that change at run time.
"""

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeplug import Host, NotReady
from nodeplug_gpu.access import NodePaths, Part, device_nodes
from nodeplug_gpu.config import Access, GpuConfig, Mig
from nodeplug_gpu.inventory import Inventory

VERSION: Final = "0.5.0"
LIBRARIES: Final = "/usr/local/nvidia/lib64"
"""Where NVIDIA's images look for the driver (their LD_LIBRARY_PATH); the libraries of the host's driver go there."""
_FOLDERS: Final = ("usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib")
_WANTED: Final = re.compile(
    r"(libcuda|libnvidia-ml|libnvidia-ptxjitcompiler|libnvidia-nvvm|libcudadebugger|libnvidia-encode|libnvcuvid"
    r"|libnvidia-opencl)\.so\.(1|4)"
)


@dataclass(slots=True)
class CdiSpecs:
    """Follows the inventory. Called in one thread."""

    config: GpuConfig
    paths: NodePaths
    host: Host
    _complaint: str = ""

    def follow(self, inventory: Inventory) -> None:
        """Write what is new; while the driver is away the specs stay as they are."""
        if inventory.view.state != "running":
            return
        for place, parts in self._parts(inventory).items():
            kind, folder = place
            try:
                self._write(folder / self._name(kind), specification(kind, parts, self.paths, self.config.driver_root))
            except (OSError, NotReady) as error:
                self._complain(f"the CDI spec of {kind} is not up to date: {error}")
            else:
                self._complaint = ""

    def stop(self) -> None:
        """Leave the files to containers that start again."""

    def _parts(self, inventory: Inventory) -> Mapping[tuple[str, Path], list[Part]]:
        """Return what each kind names: every card, and every instance of those sold by instances."""
        present = {card.uuid for card in inventory.view.cards}
        found: dict[tuple[str, Path], list[Part]] = {}
        for entry in self.config.resources:
            access = entry.access
            if not _writes(access):
                continue
            parts = found.setdefault((access.cdi_kind, access.cdi_folder), [])
            for offer in inventory.stocks_of(entry.resource):
                if offer.card.uuid in present:
                    parts.append(Part(offer.card))
                    parts += [Part(offer.card, one) for one in offer.card.instances if isinstance(entry, Mig)]
        return found

    def _name(self, kind: str) -> str:
        return f"{re.sub(r'[^A-Za-z0-9.-]', '-', f'nodeplug-{self.host.plugin}-{kind}')}.json"

    def _write(self, path: Path, document: Mapping[str, Any]) -> None:
        """Replace the file in one step: the runtime reads the folder at any time."""
        data = json.dumps(document, indent=1).encode()
        if _read(path) == data:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")  # the runtime reads *.json alone
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        temporary.rename(path)

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self.host.log.warning("%s", text)
        self._complaint = text


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _writes(access: Access) -> bool:
    return access.cdi != "none" and access.cdi_write


def specification(kind: str, parts: Iterable[Part], paths: NodePaths, driver_root: Path) -> Mapping[str, Any]:
    """Return the document.

    Args:
        kind: vendor and class.
        parts: cards and instances, each a device by its UUID.
        paths: where the driver's nodes are.
        driver_root: where its libraries are.

    Raises:
        NotReady: a device node is missing.
    """
    return {
        "cdiVersion": VERSION,
        "kind": kind,
        "devices": [
            {"name": part.uuid, "containerEdits": {"deviceNodes": _nodes([part], paths)}}
            for part in sorted(parts, key=lambda part: part.uuid)
        ],
        "containerEdits": {"mounts": _mounts(driver_root)},
    }


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
