"""The attachments that this daemon has made, or begun to make, one small file each.

Owns: `<run>/attachments/*.json`, written to a temporary file and renamed, and `*.begun`, written before a plugin is
called for an ADD and removed when that is recorded; `*.delegated` are those of plugins that another one asked. A reboot
removes the folder along with the attachments, so nothing is synced. The records supply the result for a DEL without
prevResult, the list for people, and what it takes to clean up an attachment whose namespace ended without a DEL
(`orphans`), also one that a killed daemon left half made.
Refuses: to be the truth (the kernel is) and to fail a call: a damaged file is ignored, a full disk is logged.
"""

import errno
import json
import logging
import os
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.cni import results
from nodeplug.cni.nsid import Sighting
from nodeplug.cni.results import VERSIONS
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import file_name
from nodeplug.contract.mounts import mounts
from nodeplug.contract.values import CniResult, ValidAttachment

LOG: Final = logging.getLogger(__name__)
_BEGUN: Final = ".begun"
_TEMPORARY: Final = ".tmp"
_DONE: Final = ".json"
_DELEGATED: Final = ".delegated"
_IN_MEMORY: Final = frozenset({"ramfs", "tmpfs"})
_KILLED: Final = 60.0
"""Seconds after which a file that cannot be read is no write in progress."""


@dataclass(frozen=True, slots=True)
class Key:
    """What one ADD attaches: network, container id and interface, as in the specification, for one plugin type."""

    claim: str
    network: str
    container_id: str
    ifname: str

    def __str__(self) -> str:
        return f"{self.network}/{self.container_id}/{self.ifname}"


@dataclass(frozen=True, slots=True)
class Asked:
    """The parameters of an ADD besides its key: enough for a DEL that no runtime sends.

    `config` is the plugin's configuration from stdin, without prevResult.
    """

    version: str
    config: Mapping[str, Any]
    args: Mapping[str, str] = field(default_factory=dict)
    path: tuple[str, ...] = ()

    def encode(self) -> dict[str, Any]:
        """Return it as JSON values."""
        config = {key: value for key, value in self.config.items() if key.lower() != "prevresult"}
        return {"version": self.version, "config": config, "args": dict(self.args), "path": self.path}

    @classmethod
    def decode(cls, document: Any) -> "Asked | None":
        """Read what `encode` returned, or None from earlier versions; KeyError, TypeError or ValueError if damaged."""
        if document is None:
            return None
        config, args = dict(document["config"]), dict(document["args"])
        return cls(str(document["version"]), config, args, tuple(document["path"]))


@dataclass(frozen=True, slots=True)
class Attachment:
    """One attachment as ADD left it.

    `netns` is CNI_NETNS as the caller spelled it, `time` seconds since the epoch, `host` the device and inode of the
    caller's namespace, (0, 0) if unknown. `sighting` is None if the kernel does not say which namespace the container's
    was, `asked` in records of earlier versions. `by` is the claim whose plugin delegated it; empty if a runtime asked.
    """

    key: Key
    netns: str
    result: CniResult
    time: float = field(default_factory=time.time)
    host: tuple[int, int] = (0, 0)
    sighting: Sighting | None = None
    asked: Asked | None = None
    by: str = ""


@dataclass(frozen=True, slots=True)
class Begun:
    """An ADD that was handed to its plugin, and of which nothing else is known; the fields are those of `Attachment`.

    It may run, have failed, or have been cut off by the end of a daemon: whatever it made, its DEL removes.
    """

    key: Key
    netns: str
    time: float = field(default_factory=time.time)
    host: tuple[int, int] = (0, 0)
    sighting: Sighting | None = None
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class Attachments:
    """The records in one folder, which the first record creates.

    Attributes:
        folder: the folder.
        suffix: of the files; those of other kinds are not seen.
    """

    folder: Path
    suffix: str = _DONE

    @property
    def delegated(self) -> "Attachments":
        """Return the records of what plugins attached by delegation, in the same folder."""
        return Attachments(self.folder, _DELEGATED)

    def begin(self, begun: Begun) -> None:
        """Record that a plugin is about to be called, in one write: an ADD waits for it.

        A daemon that is killed within leaves a file that cannot be read, and has called no plugin yet.
        """
        try:
            self._write(f"{self._stem(begun.key)}{_BEGUN}", _document(begun))
        except OSError as error:
            LOG.warning("cannot record that %s begins in %s: %s", begun.key, self.folder, error.strerror)

    @property
    def are_in_memory(self) -> bool:
        """Whether no disk can keep a thread that reads or writes here (tmpfs, as /run is)."""
        there = next((one for one in (self.folder, *self.folder.parents) if one.exists()), self.folder)
        try:
            device = there.stat().st_dev
        except OSError:
            return False
        number = f"{os.major(device)}:{os.minor(device)}"
        return any(mount.fs_type in _IN_MEMORY for mount in mounts() if mount.device == number)

    def record(self, attachment: Attachment) -> None:
        """Record an attachment; an older record of the key goes even if this one cannot be written."""
        stem, document = self._stem(attachment.key), _document(attachment)
        document["result"] = results.encode(attachment.result, VERSIONS[-1])
        document |= {"by": attachment.by} if attachment.by else {}
        temporary, *others = self._passing(stem)
        try:
            self._write(temporary, document)
            os.rename(temporary, f"{stem}{self.suffix}")  # noqa: PTH104  plain system calls, see `_write`
            for other in others:
                with suppress(FileNotFoundError):
                    os.unlink(other)  # noqa: PTH108
        except OSError as error:
            LOG.warning("cannot record attachment %s in %s: %s", attachment.key, self.folder, error.strerror)
            self.forget(attachment.key)

    def _write(self, path: str, document: Mapping[str, Any]) -> None:
        """Write a file; plain system calls, because those of `Path` take as long as a small netlink message."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        try:
            descriptor = os.open(path, flags, 0o600)
        except FileNotFoundError:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(path, flags, 0o600)
        try:
            data = json.dumps(document).encode()
            if os.write(descriptor, data) < len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            os.close(descriptor)

    def find(self, key: Key) -> Attachment | None:
        """Return the record of a key, or None."""
        found = _load(Path(f"{self._stem(key)}{self.suffix}"))
        return found if found is not None and found.key == key else None

    def host_of(self, key: Key) -> tuple[int, int] | None:
        """Return the host namespace of an ADD, also of one that has only begun; None if nothing is recorded."""
        found = self.find(key) or _load_begun(Path(f"{self._stem(key)}{_BEGUN}"))
        return found.host if found is not None and found.key == key else None

    def has(self, key: Key) -> bool:
        """Whether anything is recorded of a key, if only that its ADD has begun."""
        stem = self._stem(key)
        return Path(f"{stem}.json").exists() or Path(f"{stem}{_BEGUN}").exists()

    def is_known(self, one: Attachment | Begun) -> bool:
        """Whether this is still the newest that is recorded of its key."""
        found = self.find(one.key)
        if isinstance(one, Attachment) or found is not None:
            return found == one
        return _load_begun(Path(f"{self._stem(one.key)}{_BEGUN}")) == one

    def forget(self, key: Key) -> None:
        """Remove what is recorded of a key, if anything, and the temporary file of a killed daemon."""
        stem = self._stem(key)
        for path in (f"{stem}{self.suffix}", *self._passing(stem)):
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108

    def forget_invalid(self, claim: str, network: str, valid: Iterable[ValidAttachment]) -> None:
        """Remove the records that a GC has declared invalid."""
        kept = {(item.container_id, item.ifname) for item in valid}
        for key in [*(one.key for one in self.list()), *(one.key for one in self.begun())]:
            if (key.claim, key.network) == (claim, network) and (key.container_id, key.ifname) not in kept:
                self.forget(key)

    def list(self) -> tuple[Attachment, ...]:
        """Return every valid record, oldest first."""
        try:
            paths = sorted(self.folder.glob(f"*{self.suffix}"))
        except OSError:
            return ()
        found = [attachment for path in paths if (attachment := _load(path)) is not None]
        return tuple(sorted(found, key=lambda attachment: attachment.time))

    def begun(self) -> tuple[Begun, ...]:
        """Return every ADD that has begun and is not recorded as done, oldest first."""
        try:
            paths = sorted(self.folder.glob(f"*{_BEGUN}"))
        except OSError:
            return ()
        found = []
        for path in paths:
            one = _load_begun(path)
            if one is None:
                _remove_damaged(path)
            elif not path.with_suffix(".json").exists():  # else an ADD was repeated: what the first one made is in use
                found.append(one)
        return tuple(sorted(found, key=lambda one: one.time))

    def _passing(self, stem: str) -> tuple[str, ...]:
        """Return the files besides the record itself: the temporary one, then what a record supersedes."""
        if self.suffix == _DONE:
            return f"{stem}{_TEMPORARY}", f"{stem}{_BEGUN}"
        return (f"{stem}{self.suffix}{_TEMPORARY}",)

    def _stem(self, key: Key) -> str:
        return f"{self.folder}/{file_name(f'{key.claim}@{key}')}"


def _document(one: Attachment | Begun) -> dict[str, Any]:
    key = one.key
    return {
        "claim": key.claim,
        "network": key.network,
        "container_id": key.container_id,
        "ifname": key.ifname,
        "netns": one.netns,
        "time": one.time,
        "host": list(one.host),
        "sighting": one.sighting.encode() if one.sighting else None,
        "asked": one.asked.encode() if one.asked else None,
    }


def _load(path: Path) -> Attachment | None:
    try:
        document: Any = json.loads(read_bounded(path))
        result, one = results.decode(document["result"], VERSIONS[-1]), _begun_of(document)
        by = str(document.get("by", ""))
        return Attachment(one.key, one.netns, result, one.time, one.host, one.sighting, one.asked, by)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, PluginError):
        return None


def _load_begun(path: Path) -> Begun | None:
    try:
        return _begun_of(json.loads(read_bounded(path)))
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _begun_of(document: Any) -> Begun:
    key = Key(*(str(document[name]) for name in ("claim", "network", "container_id", "ifname")))
    device, inode = document.get("host", (0, 0))  # earlier versions did not write it
    return Begun(
        key,
        str(document["netns"]),
        float(document["time"]),
        (int(device), int(inode)),
        Sighting.decode(document.get("sighting")),
        Asked.decode(document.get("asked")),
    )


def _remove_damaged(path: Path) -> None:
    """Remove what a killed daemon left of a write, before it had called a plugin."""
    with suppress(OSError):
        if time.time() - path.stat().st_mtime > _KILLED:
            path.unlink()
