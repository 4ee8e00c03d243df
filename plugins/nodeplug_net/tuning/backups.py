"""What interfaces were before tuning changed them, in the files of the reference plugin.

Owns: `<dataDir>/<container id>_<ifname>.json` with the reference's keys, so that the DEL of either restores what the
other changed; a key of ours says which interface it is about, and of which network, which GC needs. The reference
ignores it.
Refuses: the kernel. A file that cannot be understood counts as none.
"""

import errno
import json
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import Field, ValidationError

from nodeplug import Exhausted, PluginError
from nodeplug_net.interface_config import Conf
from nodeplug_net.tuning.settings import Settings

_LIMIT: Final = 1 << 16
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
Identity = tuple[int, int, int]
"""Device and inode of a namespace, and an interface's index in it."""


class _Own(Conf):
    network: str
    interface: tuple[int, int, int] = Field(strict=False)


class _File(Conf):
    mac: str | None = None
    promisc: bool | None = None
    mtu: int | None = None
    allmulti: bool | None = None
    queue: int | None = Field(None, alias="txQLen")
    nodeplug: _Own | None = None


@dataclass(frozen=True, slots=True)
class Backup:
    """What an interface was.

    Attributes:
        settings: those that were changed.
        network: whose attachment it is; empty in a file of the reference.
        interface: which one; None in a file of the reference.
    """

    settings: Settings
    network: str = ""
    interface: Identity | None = None


@dataclass(frozen=True, slots=True)
class BackupFile:
    """The backup of one attachment."""

    path: Path

    @classmethod
    def of(cls, folder: Path, container_id: str, ifname: str) -> "BackupFile":
        """Name the file as the reference does."""
        return cls(folder / f"{container_id}_{ifname}.json")

    def read(self) -> Backup | None:
        """Read it; None if there is none that can be understood.

        Raises:
            PluginError: it cannot be opened.
        """
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise PluginError(f'failed to open file "{self.path}": {os.strerror(error.errno or 0).lower()}') from error
        try:
            found = _File.model_validate_json(os.read(descriptor, _LIMIT))
        except (OSError, ValidationError):
            return None
        finally:
            os.close(descriptor)
        own = found.nodeplug
        settings = Settings(found.mac or None, found.promisc, found.mtu or None, found.allmulti, found.queue)
        return Backup(settings, own.network, own.interface) if own else Backup(settings)

    def write(self, backup: Backup) -> None:
        """Write it, whole or not at all if this process ends; it counts in this boot alone, and is not synced.

        Raises:
            Exhausted: the disk is full.
            PluginError: the folder cannot be made or written.
        """
        own = None if backup.interface is None else _Own(network=backup.network, interface=backup.interface)
        one = backup.settings
        file = _File(
            mac=one.mac, promisc=one.promisc, mtu=one.mtu, allmulti=one.allmulti, txQLen=one.queue, nodeplug=own
        )
        data = json.dumps(file.model_dump(by_alias=True, exclude_none=True), indent=1).encode()
        try:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failure("failed to create backup directory: mkdir", error) from error
        temporary = self._temporary
        try:
            temporary.unlink(missing_ok=True)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
            temporary.rename(self.path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            name = self.path.stem.rpartition("_")[2]
            raise _failure(f"failed to save file {name}.json: open", error) from error

    def remove(self) -> None:
        """Remove it, and what a killed write left; succeed when there is none.

        Raises:
            PluginError: the folder cannot be written.
        """
        for path in (self._temporary, self.path):
            try:
                path.unlink()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise _failure("failed to remove file", error) from error

    @property
    def _temporary(self) -> Path:
        return self.path.with_name(f".{self.path.name}.tmp")


def _failure(what: str, error: OSError) -> PluginError:
    kind = Exhausted if error.errno in _FULL else PluginError
    return kind(f"{what} {error.filename}: {os.strerror(error.errno or 0).lower()}")


def forget_others(folder: Path, network: str, valid: frozenset[str]) -> None:
    """Remove the backups of a network's attachments that are not valid.

    Args:
        folder: of backups, which networks may share.
        network: only its own are looked at: a file of the reference does not say whose it is, and stays.
        valid: the names of files to keep.

    Raises:
        PluginError: the folder cannot be written.
    """
    for path in sorted(folder.glob("*.json")):
        if path.name in valid:
            continue
        file = BackupFile(path)
        backup = file.read()
        if backup is not None and backup.network == network:
            file.remove()


def is_usable(folder: Path) -> bool:
    """Whether a backup could be written."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
