"""What kubelet was last told of each resource, for the first moment after a crash.

Owns: `<run>/devices/<resource>.json`: the list as kubelet got it, the section and the hooks that it came from, stamped
with the boot id. Written beside the event loop, only when it changes, the latest alone; renamed into its place, so that
a record is whole or absent after `kill -9`. It is not synced: after a power cut the boot id is another one.
Refuses: to be the truth: nothing is granted from a record, a plugin lists again first. What cannot be used (of another
boot or version, damaged, too large, no regular file) is removed, with one line in the log.
"""

import asyncio
import base64
import json
import logging
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from google.protobuf.message import DecodeError

from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import clip
from nodeplug.contract.journal import file_name, write_whole
from nodeplug.contract.values.devices import Device, DeviceId, ResourceName
from nodeplug.device.codec import HEALTHY, LIST_LIMIT
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)
VERSION: Final = 1
LIMIT: Final = 2 * LIST_LIMIT
"""Bytes of a record: base64 makes four bytes of three."""
UNKNOWN: Final = "it was unhealthy when the daemon ended, and is not listed again yet"
_SHOWN_HOOKS: Final = frozenset({"device_prefer", "device_prestart"})
"""Those of which kubelet is told when a resource registers."""


@dataclass(frozen=True, slots=True, eq=False)
class Remembered:
    """What kubelet was last told of a resource.

    Attributes:
        plugin: the section that claimed it.
        hooks: those of its hooks that kubelet knows of.
        message: the list.
    """

    resource: ResourceName
    plugin: str
    hooks: frozenset[str]
    message: pb.ListAndWatchResponse

    @classmethod
    def of(
        cls, resource: ResourceName, plugin: str, hooks: frozenset[str], message: pb.ListAndWatchResponse
    ) -> "Remembered":
        """Remember what a plugin offers."""
        return cls(resource, plugin, hooks & _SHOWN_HOOKS, message)

    def same(self, other: "Remembered | None") -> bool:
        """Whether a record of the other says the same."""
        return (
            other is not None
            and (self.plugin, self.hooks) == (other.plugin, other.hooks)
            and (self.message is other.message or self.message == other.message)
        )

    def devices(self) -> Mapping[DeviceId, Device]:
        """Return the devices as far as kubelet knew them: nothing can be granted from these."""
        return {
            DeviceId(one.ID): Device(
                DeviceId(one.ID),
                healthy=one.health == HEALTHY,
                reason="" if one.health == HEALTHY else UNKNOWN,
                numa_nodes=tuple(node.ID for node in one.topology.nodes),
            )
            for one in self.message.devices
        }


@dataclass(slots=True)
class LastKnown:
    """The records of all resources. Used only from the event loop.

    Attributes:
        folder: where they are; made by the first one.
        boot_id: of this boot.
    """

    folder: Path
    boot_id: str
    _lane: Lane = field(init=False)
    _wanted: dict[ResourceName, Remembered | None] = field(default_factory=dict)
    _written: dict[ResourceName, Remembered] = field(default_factory=dict)
    _writing: "asyncio.Task[None] | None" = None
    _trouble: str = ""

    def __post_init__(self) -> None:
        self._lane = Lane(f"the folder {self.folder}")

    async def recall(self) -> list[Remembered]:
        """Return what can be used of what an earlier daemon of this boot left; the rest is gone afterwards."""
        try:
            found = await self._lane.run(self._read_all)
        except Unanswered as error:
            LOG.warning("starting without the last known devices: %s", error)
            return []
        self._written = {known.resource: known for known in found}
        return found

    def note(self, known: Remembered) -> None:
        """Remember what kubelet is told now; nothing happens if that is remembered already."""
        if known.resource in self._wanted or not known.same(self._written.get(known.resource)):
            self._want(known.resource, known)

    def forget(self, resource: ResourceName) -> None:
        """Remove what is remembered of a resource that is not offered any more."""
        if resource in self._wanted or resource in self._written:
            self._want(resource, None)

    async def settle(self) -> None:
        """Wait until everything that was noted is on the disk, or cannot be."""
        if self._writing is not None:
            await asyncio.wait([self._writing])

    def _want(self, resource: ResourceName, known: Remembered | None) -> None:
        self._wanted[resource] = known
        if self._writing is None or self._writing.done():
            self._writing = asyncio.create_task(self._write_wanted(), name="last known devices")

    async def _write_wanted(self) -> None:
        while self._wanted:
            resource, known = next(iter(self._wanted.items()))
            del self._wanted[resource]
            try:
                await self._lane.run(lambda known=known, resource=resource: self._replace(resource, known))  # type: ignore[misc]
            except (OSError, Unanswered) as error:  # noted again with the next list
                self._written.pop(resource, None)
                self._complain(f"the last known devices of {resource} cannot be kept: {error}")
                continue
            self._trouble = ""
            if known is None:
                self._written.pop(resource, None)
            else:
                self._written[resource] = known

    def _complain(self, trouble: str) -> None:
        if trouble != self._trouble:
            LOG.warning("%s; after a crash its devices are listed later", trouble)
        self._trouble = trouble

    # --- in the thread of the lane ------------------------------------------------------------------------------

    def _path(self, resource: ResourceName) -> Path:
        return self.folder / f"{file_name(resource)}.json"

    def _replace(self, resource: ResourceName, known: Remembered | None) -> None:
        path = self._path(resource)
        if known is None:
            path.unlink(missing_ok=True)
            return
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, self._encode(known))
        except OSError:
            with suppress(OSError):  # an old list must not come back
                path.unlink(missing_ok=True)
            raise

    def _encode(self, known: Remembered) -> bytes:
        devices = known.message.SerializeToString()
        document = {
            "version": VERSION,
            "boot_id": self.boot_id,
            "resource": known.resource,
            "plugin": known.plugin,
            "hooks": sorted(known.hooks),
            "crc32": zlib.crc32(devices),
            "devices": base64.b64encode(devices).decode(),
        }
        return json.dumps(document).encode()

    def _read_all(self) -> list[Remembered]:
        found = []
        try:
            paths = sorted(self.folder.iterdir())
        except FileNotFoundError:
            return []
        except OSError as error:
            LOG.warning("starting without the last known devices: %s", error)
            return []
        for path in paths:
            if path.suffix != ".json":
                _discard(path)  # what a killed daemon was writing
                continue
            try:
                found.append(self._decode(read_bounded(path, LIMIT)))
            except (OSError, _Unusable) as error:
                why = getattr(error, "strerror", "") or str(error)
                LOG.warning("the last known devices in %s are not used: %s", path, clip(why))
                _discard(path)
        return found

    def _decode(self, data: bytes) -> Remembered:
        try:
            document: dict[str, Any] = json.loads(data)
            version, boot_id = document["version"], document["boot_id"]
            if version == VERSION and boot_id == self.boot_id:
                return _decoded(document)
        except (ValueError, TypeError, KeyError, RecursionError, DecodeError):
            raise _Unusable("they are damaged") from None
        if version != VERSION:
            raise _Unusable(f"they are of version {version!r}, and this daemon knows {VERSION}")
        raise _Unusable("they are of another boot")


class _Unusable(Exception):
    """A record that is none, or none of this boot; the text says why."""


def _decoded(document: dict[str, Any]) -> Remembered:
    devices = base64.b64decode(document["devices"], validate=True)
    resource, plugin, hooks = document["resource"], document["plugin"], frozenset(document["hooks"])
    whole = isinstance(resource, str) and isinstance(plugin, str) and hooks <= _SHOWN_HOOKS
    if not whole or zlib.crc32(devices) != document["crc32"]:
        raise ValueError(resource)
    return Remembered(ResourceName(resource), plugin, hooks, pb.ListAndWatchResponse.FromString(devices))


def _discard(path: Path) -> None:
    """Remove what is no record; a folder that somebody made stays."""
    with suppress(OSError):
        path.unlink()
