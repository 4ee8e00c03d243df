"""The network configuration lists of objects `Network`, as files of this node.

Owns: `<state>/networks/conflists/NAME.conflist`, and `withdrawn/` beside it for those that only attachments still need.
Refuses: the runtime's folder of configurations: a file there can become the network of every pod, which an object of
the cluster must not do. Any thread may read; one writes.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.journal import sync_folder, write_durably

_SUFFIX: Final = ".conflist"


class Conflists:
    """The files.

    Args:
        folder: made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._withdrawn = folder / "withdrawn"
        self._written: dict[str, tuple[tuple[int, int, int], Mapping[str, Any]]] = {}

    def read(self, name: str) -> Mapping[str, Any] | None:
        """Return a list, or None; the name must be one that an object can have.

        Raises:
            TryAgain: it is withdrawn, or cannot be read.
        """
        try:
            found = json.loads(read_bounded(self.folder / f"{name}{_SUFFIX}"))
        except FileNotFoundError:
            if (self._withdrawn / f"{name}{_SUFFIX}").exists():
                raise TryAgain(
                    f"network {name} is being withdrawn from this node: its object is gone, or is for other nodes now"
                ) from None
            return None
        except (OSError, ValueError) as error:
            raise TryAgain(f"the configuration of network {name} cannot be read: {error}") from None
        if not isinstance(found, dict):
            raise TryAgain(f"the configuration of network {name} is no object")
        return found

    def write(self, name: str, conflist: Mapping[str, Any]) -> None:
        """Write a list, unless it is there already.

        Raises:
            PluginError: the disk refuses.
        """
        path = self.folder / f"{name}{_SUFFIX}"
        if self._written.get(name) == (_seen(path), conflist):
            return  # there may be thousands, and all of them are looked at twice a minute
        data = json.dumps(conflist, indent=2).encode() + b"\n"
        with suppress(OSError):
            if read_bounded(path) == data:
                self._written[name] = _seen(path), conflist
                return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_durably(path, data)
            (self._withdrawn / path.name).unlink(missing_ok=True)
        except OSError as error:
            raise PluginError(f"cannot write {path}: {error.strerror}") from None
        self._written[name] = _seen(path), conflist

    def keep(self, names: Collection[str], used: Collection[str] | None) -> frozenset[str]:
        """Withdraw all others, and remove those that nobody uses.

        Args:
            names: those that stay.
            used: those that attachments use; None if that is not known, and then none is removed.

        Returns:
            Those that are withdrawn and still used.

        Raises:
            PluginError: the disk refuses.
        """
        try:
            for name in set(_names(self.folder)) - set(names):
                self._written.pop(name, None)
                self._withdrawn.mkdir(mode=0o700, exist_ok=True)
                (self.folder / f"{name}{_SUFFIX}").rename(self._withdrawn / f"{name}{_SUFFIX}")
                sync_folder(self.folder)
            left = set(_names(self._withdrawn))
            for name in () if used is None else left - set(used):
                (self._withdrawn / f"{name}{_SUFFIX}").unlink(missing_ok=True)
                left.discard(name)
        except OSError as error:
            raise PluginError(f"cannot withdraw networks in {self.folder}: {error.strerror}") from None
        return frozenset(left)


def _seen(path: Path) -> tuple[int, int, int]:
    """Return what changes with a file; nothing that any file has if it is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns


def _names(folder: Path) -> Iterator[str]:
    for path in folder.glob(f"*{_SUFFIX}"):
        if not path.name.startswith("."):
            yield path.name.removesuffix(_SUFFIX)


def taken_names(folder: Path) -> Mapping[str, str]:
    """Return the networks of a runtime's folder by name, and their files; what cannot be read has no name."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*")):
        if path.suffix in {".conflist", ".conf", ".json"}:
            with suppress(OSError, ValueError):
                document = json.loads(read_bounded(path))
                if isinstance(document, dict) and isinstance(document.get("name"), str):
                    found.setdefault(document["name"], str(path))
    return found


def installed(folder: Path) -> frozenset[str]:
    """Return the files of a folder of CNI executables."""
    try:
        return frozenset(path.name for path in folder.iterdir() if path.is_file())
    except OSError:
        return frozenset()
