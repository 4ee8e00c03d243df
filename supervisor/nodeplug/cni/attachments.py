"""The attachments that this daemon has made, one small file each.

Owns: `<run>/attachments/*.json`, written to a temporary file and renamed. A reboot removes the folder along with the
attachments, so nothing is synced. The records supply the result for a DEL without prevResult, the list for people, and
what it takes to clean up an attachment whose namespace ended without a DEL (`orphans`).
Refuses: to be the truth (the kernel is) and to fail a call: a damaged file is ignored, a full disk is logged.
"""

import json
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.cni import results
from nodeplug.cni.nsid import Sighting
from nodeplug.cni.results import VERSIONS
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError
from nodeplug.contract.journal import file_name
from nodeplug.contract.values import CniResult, ValidAttachment

LOG: Final = logging.getLogger(__name__)


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
    was, `asked` in records of earlier versions.
    """

    key: Key
    netns: str
    result: CniResult
    time: float = field(default_factory=time.time)
    host: tuple[int, int] = (0, 0)
    sighting: Sighting | None = None
    asked: Asked | None = None


@dataclass(frozen=True, slots=True)
class Attachments:
    """The records in one folder, which the first record creates."""

    folder: Path

    def record(self, attachment: Attachment) -> None:
        """Record an attachment; an older record of the key goes even if this one cannot be written."""
        key = attachment.key
        document = {
            **asdict(key),
            "netns": attachment.netns,
            "time": attachment.time,
            "host": list(attachment.host),
            "sighting": attachment.sighting.encode() if attachment.sighting else None,
            "asked": attachment.asked.encode() if attachment.asked else None,
            "result": results.encode(attachment.result, VERSIONS[-1]),
        }
        path = self._path(key)
        temporary = path.with_suffix(".tmp")
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            temporary.write_text(json.dumps(document), encoding="utf-8")
            temporary.rename(path)
        except OSError as error:
            LOG.warning("cannot record attachment %s in %s: %s", key, self.folder, error.strerror)
            self.forget(key)

    def find(self, key: Key) -> Attachment | None:
        """Return the record of a key, or None."""
        found = _load(self._path(key))
        return found if found is not None and found.key == key else None

    def forget(self, key: Key) -> None:
        """Remove the record of a key, if any, and the temporary file of a killed daemon."""
        for path in (self._path(key), self._path(key).with_suffix(".tmp")):
            with suppress(OSError):
                path.unlink()

    def forget_invalid(self, claim: str, network: str, valid: Iterable[ValidAttachment]) -> None:
        """Remove the records that a GC has declared invalid."""
        kept = {(item.container_id, item.ifname) for item in valid}
        for attachment in self.list():
            key = attachment.key
            if (key.claim, key.network) == (claim, network) and (key.container_id, key.ifname) not in kept:
                self.forget(key)

    def list(self) -> tuple[Attachment, ...]:
        """Return every valid record, oldest first."""
        try:
            paths = sorted(self.folder.glob("*.json"))
        except OSError:
            return ()
        found = [attachment for path in paths if (attachment := _load(path)) is not None]
        return tuple(sorted(found, key=lambda attachment: attachment.time))

    def _path(self, key: Key) -> Path:
        return self.folder / f"{file_name(f'{key.claim}@{key}')}.json"


def _load(path: Path) -> Attachment | None:
    try:
        document: Any = json.loads(read_bounded(path))
        key = Key(*(str(document[name]) for name in ("claim", "network", "container_id", "ifname")))
        result = results.decode(document["result"], VERSIONS[-1])
        device, inode = document.get("host", (0, 0))  # earlier versions did not write it
        return Attachment(
            key,
            str(document["netns"]),
            result,
            float(document["time"]),
            (int(device), int(inode)),
            Sighting.decode(document.get("sighting")),
            Asked.decode(document.get("asked")),
        )
    except (OSError, ValueError, KeyError, TypeError, RecursionError, PluginError):
        return None
