"""The newest device list of one resource, and the wait for the next.

Owns: the version of the list and the wake-up of every stream that shows it. Each stream gets the current list at once
and then each newer one; a slow stream skips to the latest, and a dead stream takes nothing from a live one.
Refuses: streams, sockets, plugins.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from nodeplug.contract.values.devices import Device, DeviceId, ResourceName
from nodeplug.device.codec import encode_list
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.process.aside import aside

_LONG: Final = 2000
"""Devices from which a list is written in a thread: it would hold up the event loop for longer than a few ms."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One device list.

    Attributes:
        version: from 1; it counts what kubelet can see, so a new reason or grant alone does not change it.
        devices: by id.
        message: the list as kubelet gets it.
    """

    version: int
    devices: Mapping[DeviceId, Device]
    message: pb.ListAndWatchResponse


@dataclass(slots=True)
class Snapshots:
    """The lists of one resource. Used only from the event loop."""

    resource: ResourceName
    current: Snapshot | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def publish(self, devices: Sequence[Device]) -> bool:
        """Make a list the current one and wake the streams if kubelet would see a difference.

        Kubelet rewrites its checkpoint for each message, so an equal list, in whatever order, is not sent again. One
        caller at a time.

        Returns:
            Whether kubelet would see a difference.

        Raises:
            InvalidRequest, Exhausted: the list cannot be sent; the current one stays.
        """
        if len(devices) > _LONG:
            before = self.current
            after = await aside(lambda: _following(before, self.resource, devices), f"list of {self.resource}")
        else:
            after = _following(self.current, self.resource, devices)
        before, self.current = self.current, after
        if before is not None and before.version == after.version:
            return False
        await self.wake()
        return True

    async def wake(self) -> None:
        """Let every waiter look again."""
        async with self._changed:
            self._changed.notify_all()

    async def after(self, version: int, until: Callable[[], bool]) -> Snapshot | None:
        """Wait for a list newer than `version` (0: any).

        Returns:
            The newest list, or None once `until()` is true (`wake` makes it be asked again).
        """
        async with self._changed:
            await self._changed.wait_for(lambda: until() or self._newer(version) is not None)
        return None if until() else self._newer(version)

    def _newer(self, version: int) -> Snapshot | None:
        return self.current if self.current is not None and self.current.version > version else None


def _following(before: Snapshot | None, resource: ResourceName, devices: Sequence[Device]) -> Snapshot:
    by_id = MappingProxyType({device.id: device for device in devices})
    if before is not None and len(by_id) == len(devices) and _visible(before.devices) == _visible(by_id):
        return Snapshot(before.version, by_id, before.message)
    return Snapshot(1 if before is None else before.version + 1, by_id, encode_list(resource, devices))


def _visible(devices: Mapping[DeviceId, Device]) -> dict[DeviceId, tuple[bool, tuple[int, ...]]]:
    return {name: (device.healthy, device.numa_nodes) for name, device in devices.items()}
