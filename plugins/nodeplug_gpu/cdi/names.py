"""Which device names the runtime knows by the CDI specs of this node, whoever wrote them.

Owns: reading the folders as the runtime does: a later folder overrides an earlier one, and a name that two files of one
folder describe is unknown. A file is read again when it has changed.
Refuses: to judge what a spec says of a device.

Source: Container Device Interface, SPEC.md, and pkg/cdi/cache.go of its reference implementation.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any, Final

import yaml

from nodeplug import read_bounded

_SUFFIXES: Final = (".json", ".yaml")
_MAX_BYTES: Final = 8 << 20

Identity = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class _Described:
    """What one file describes; nothing if it is no spec."""

    identity: Identity
    kind: str = ""
    names: frozenset[str] = frozenset()


@dataclass(slots=True)
class SpecNames:
    """The names that specs describe. Any thread may ask.

    Attributes:
        folders: of the runtime, the one that overrides the others last.
    """

    folders: tuple[Path, ...]
    _files: Mapping[Path, _Described] = field(default_factory=dict)
    _lock: Lock = field(default_factory=Lock)

    def unknown_reason(self, kind: str, name: str) -> str:
        """Return why a container that is given a name would not start; empty when the runtime knows it."""
        with self._lock:
            self._files = {path: self._described(path) for path in self._paths()}
            files = self._files
        for folder in reversed(self.folders):
            found = [path for path, one in files.items() if path.parent == folder and one.kind == kind]
            describing = [path for path in found if name in files[path].names]
            if len(describing) > 1:
                both = " and ".join(map(str, sorted(describing)))
                return f"{both} both describe {kind}={name}, and so it is unknown to the runtime: remove one of them"
            if describing:
                return ""
        others = sorted({other for one in files.values() if one.kind == kind for other in one.names})
        known = f", only {', '.join(others[:8])}{' …' if len(others) > 8 else ''}" if others else ""
        return f"no CDI spec in {' or '.join(map(str, self.folders))} describes {kind}={name}{known}"

    def _paths(self) -> Iterator[Path]:
        for folder in self.folders:
            try:
                with os.scandir(folder) as entries:
                    yield from [folder / one.name for one in entries if one.name.endswith(_SUFFIXES)]
            except OSError:
                continue

    def _described(self, path: Path) -> _Described:
        try:
            stat = path.stat()
        except OSError:
            return _Described((0, 0, 0, 0))
        identity = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        known = self._files.get(path)
        return known if known is not None and known.identity == identity else _read(path, identity)


def _read(path: Path, identity: Identity) -> _Described:
    try:
        data = read_bounded(path, _MAX_BYTES)
        found: Any = json.loads(data) if path.suffix == ".json" else yaml.safe_load(data)
        return _Described(identity, str(found["kind"]), frozenset(_names(found["devices"])))
    except (OSError, ValueError, KeyError, TypeError, RecursionError, yaml.YAMLError):
        return _Described(identity)


def _names(devices: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for device in devices:
        yield str(device["name"])
