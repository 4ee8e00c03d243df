"""CDI specs as a container runtime reads them, and what they make of a container.

Owns: which files count, which devices they define, and the order in which edits apply.
Refuses: to start containers, and to look whether device nodes and mounts exist.

Source: tags.cncf.io/container-device-interface v1.1, pkg/cdi/{cache,spec,container-edits}.go; containerd 2.3,
internal/cri/opts (CDI devices of the CRI request). A device that is named twice is applied twice, which only hooks
show.
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_VENDOR: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS: Final = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_VERSION: Final = re.compile(r"v?[01]\.\d+\.\d+")


class UnresolvableDevices(Exception):
    """A container cannot be created: CDI devices that it is to get are in no spec.

    Attributes:
        names: of the devices.
    """

    def __init__(self, names: Sequence[str], mistakes: Mapping[Path, str]) -> None:
        told = "".join(f"; {path.name}: {mistake}" for path, mistake in mistakes.items())
        super().__init__(f"CDI device injection failed: unresolvable CDI devices {', '.join(names)}{told}")
        self.names = tuple(names)


@dataclass
class Edits:
    """What a container gets.

    Attributes:
        env: by name; of two edits with one name the last wins.
        device_nodes: by path, as specs have them.
        mounts: by path in the container, as specs have them.
        hooks: in order, as often as they are named.
        names: the CDI devices, as the runtime was asked for them.
    """

    env: dict[str, str] = field(default_factory=dict)
    device_nodes: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    mounts: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    hooks: list[Mapping[str, Any]] = field(default_factory=list)
    names: tuple[str, ...] = ()

    def apply(self, edits: Mapping[str, Any]) -> None:
        """Apply the `containerEdits` of a spec or of a device."""
        for entry in edits.get("env") or ():
            name, _, value = entry.partition("=")
            self.env[name] = value
        for node in edits.get("deviceNodes") or ():
            self.device_nodes[node["path"]] = node
        for mount in edits.get("mounts") or ():
            self.mounts[mount["containerPath"]] = mount
        self.hooks += edits.get("hooks") or ()


@dataclass(frozen=True)
class _Device:
    spec: Path
    common: Mapping[str, Any]
    edits: Mapping[str, Any]


class CdiSpecs:
    """The folders of specs of a node.

    Args:
        folders: those that come later win.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(folders)

    def resolve(self, names: Sequence[str]) -> Edits:
        """Return what a container gets that is to have these devices.

        Raises:
            UnresolvableDevices: at least one is in no spec.
        """
        if not names:
            return Edits()
        devices, mistakes = self._read()
        if missing := [name for name in names if name not in devices]:
            raise UnresolvableDevices(missing, mistakes)
        found, applied = Edits(names=tuple(names)), set()
        for name in names:
            device = devices[name]
            if device.spec not in applied:
                applied.add(device.spec)
                found.apply(device.common)
            found.apply(device.edits)
        return found

    def devices(self) -> frozenset[str]:
        """Return the names of all devices that can be resolved."""
        return frozenset(self._read()[0])

    def _read(self) -> tuple[dict[str, _Device], dict[Path, str]]:
        devices: dict[str, _Device] = {}
        mistakes: dict[Path, str] = {}
        for folder in self.folders:
            here: dict[str, _Device] = {}
            twice: set[str] = set()
            for path in sorted(folder.glob("*.json")):
                try:
                    known = _devices_of(path)
                except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                    mistakes[path] = f"{type(error).__name__}: {error}"
                    continue
                twice |= here.keys() & known.keys()
                here |= known
            for name in twice:  # a conflict within one folder leaves nobody the device
                mistakes[here.pop(name).spec] = f"conflicting device {name!r}"
            devices |= here
        return devices, mistakes


def _devices_of(path: Path) -> dict[str, _Device]:
    """Read a spec as strictly as the library does: one mistake makes the whole file count for nothing."""
    document = json.loads(path.read_bytes())
    if not _VERSION.fullmatch(document["cdiVersion"]):
        raise ValueError(f"invalid version {document['cdiVersion']!r}")
    vendor, slash, kind = str(document["kind"]).partition("/")
    if not slash or not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(kind):
        raise ValueError(f"invalid kind {document['kind']!r}")
    common = document.get("containerEdits") or {}
    _check(common)
    found: dict[str, _Device] = {}
    for device in document["devices"]:
        name, edits = str(device["name"]), device.get("containerEdits") or {}
        if not _NAME.fullmatch(name):
            raise ValueError(f"invalid device name {name!r}")
        if f"{vendor}/{kind}={name}" in found:
            raise ValueError(f"multiple device {name!r}")
        if not any(edits.values()):
            raise ValueError(f"invalid device {name!r}, empty device edits")
        _check(edits)
        found[f"{vendor}/{kind}={name}"] = _Device(path, common, edits)
    if not found:
        raise ValueError("no devices")
    return found


def _check(edits: Mapping[str, Any]) -> None:
    for entry in edits.get("env") or ():
        if entry.find("=") < 1:
            raise ValueError(f"invalid environment variable {entry!r}")
    for node in edits.get("deviceNodes") or ():
        if not node["path"]:
            raise ValueError("invalid (empty) device path")
    for mount in edits.get("mounts") or ():
        if not mount["hostPath"] or not mount["containerPath"]:
            raise ValueError("invalid mount, empty host or container path")
