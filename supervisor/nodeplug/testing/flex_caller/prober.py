"""How kubelet finds FlexVolume drivers (pkg/volume/flexvolume, probe.go).

Owns: the first full probe, what counts as a change of a driver's folder, and who is asked again.
Refuses: inotify: the folder is compared at each probe, which is when kubelet acts upon its events too.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nodeplug.testing.flex_caller.answers import FlexFailure, FlexNotSupported


@dataclass(slots=True)
class FlexProber:
    """The drivers of one plugin folder.

    Attributes:
        plugin_dir: kubelet's --volume-plugin-dir.
        make: makes the caller of a driver, `vendor/driver`; each successful probe gets a new one.
        drivers: what is usable, by the folder's name.
        failures: why a driver is not, by the folder's name; one failure per run of `init`.
    """

    plugin_dir: Path
    make: Callable[[str], Any]
    drivers: dict[str, Any] = field(default_factory=dict)
    failures: list[tuple[str, str]] = field(default_factory=list)
    _seen: dict[str, tuple[Any, int]] = field(default_factory=dict)
    _again: set[str] = field(default_factory=set)
    _began: bool = False

    def probe(self) -> dict[str, Any]:
        """Look for changes, as kubelet does at each lookup of a volume.

        The first time every folder is asked; a driver whose `init` fails then is asked again only after a change. One
        that fails later is asked again at every probe. Names that begin with a dot are not looked at.

        Returns:
            The usable drivers by the folder's name.
        """
        first, self._began = not self._began, True
        found = {path.name: path for path in self.plugin_dir.iterdir() if self._is_driver(path)}
        for name in sorted(self._seen.keys() - found.keys()):
            self._vanished(name)
        for name in sorted(found):
            self._look(found[name], first=first)
        for name in sorted(self._again - found.keys()):
            self._init(name, retry=True)
        return self.drivers

    def close(self) -> None:
        """Close the descriptors of the folders."""
        for _, descriptor in self._seen.values():
            os.close(descriptor)
        self._seen.clear()

    def _is_driver(self, path: Path) -> bool:
        return path.is_dir() and not path.name.startswith(".")

    def _look(self, path: Path, *, first: bool) -> None:
        stamp, before = _stamp(path), self._seen.get(path.name)
        if before is None:
            self._seen[path.name] = stamp, os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        else:
            self._seen[path.name] = stamp, before[1]
        executable = path / path.name.rpartition("~")[2]
        if before is not None and not executable.exists() and before[0] != stamp:
            self._forget(path.name)  # unlink of the executable is a removal
        elif before is None or before[0] != stamp or path.name in self._again:
            self._init(path.name, retry=not first)

    def _vanished(self, name: str) -> None:
        """A folder that was removed is forgotten; one that was renamed away still exists, and counts as changed."""
        descriptor = self._seen.pop(name)[1]
        removed = os.fstat(descriptor).st_nlink == 0
        os.close(descriptor)
        if removed:
            self._forget(name)
        else:
            self._again.add(name)

    def _forget(self, name: str) -> None:
        self.drivers.pop(name, None)
        self._again.discard(name)

    def _init(self, name: str, *, retry: bool) -> None:
        caller = self.make(name.replace("~", "/"))
        try:
            caller.probe()
        except (FlexFailure, FlexNotSupported) as error:
            self.failures.append((name, str(error)))
            self.drivers.pop(name, None)
            if retry:
                self._again.add(name)
        else:
            self.drivers[name] = caller
            self._again.discard(name)


def _stamp(folder: Path) -> tuple[Any, ...]:
    """Tell two states of a folder apart by what is in it, but for names that begin with a dot."""
    rows = []
    for path in sorted(folder.iterdir()):
        if not path.name.startswith("."):
            found = path.lstat()
            rows.append((path.name, found.st_ino, found.st_mtime_ns, found.st_ctime_ns))
    return folder.stat().st_ino, tuple(rows)
