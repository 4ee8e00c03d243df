"""The newest device list of one resource, and the wait for the next.

Owns: the version of the list and the wake-up of every stream that shows it. Each stream gets the current list at once
and then each newer one; a slow stream skips to the latest, and a dead stream takes nothing from a live one. Of a list
that has become too long to be sent, what was listed before goes on: an id that is ill must not be given to a pod.
Refuses: streams, sockets, plugins.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from nodeplug.contract.errors import Exhausted
from nodeplug.contract.values.devices import Device, DeviceId, ResourceName
from nodeplug.device.codec import encode_list
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.process.aside import aside

_LONG: Final = 2000
"""Devices from which a list is written in a thread: it would hold up the event loop for longer than a few ms."""
UNLISTED: Final = "it is not among the devices that the plugin lists now"


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
    """The lists of one resource. Used only from the event loop.

    Attributes:
        current: the newest list.
        shortened: why it is not all that was to be listed; empty when it is.
    """

    resource: ResourceName
    current: Snapshot | None = None
    shortened: str = ""
    _whole: Mapping[DeviceId, Device] | None = None
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def publish(self, devices: Sequence[Device]) -> bool:
        """Make a list the current one and wake the streams if kubelet would see a difference.

        Kubelet rewrites its checkpoint for each message, so an equal list, in whatever order, is not sent again. One
        caller at a time.

        Of a list that is too long, the ids of the last one that was not are listed as they are in it, and as unhealthy
        if it lacks them.

        Returns:
            Whether kubelet would see a difference.

        Raises:
            InvalidRequest: the list cannot be sent; the current one stays.
            Exhausted: it is too long, and there is none before it, or its ids alone are too many by now.
        """
        before, known = self.current, self._whole
        if known is None and before is not None:
            known = before.devices
        if len(devices) > _LONG:
            after, why = await aside(
                lambda: _sendable(before, self.resource, devices, known), f"list of {self.resource}"
            )
        else:
            after, why = _sendable(before, self.resource, devices, known)
        self.current, self.shortened = after, why
        self._whole = known if why else after.devices
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


def _sendable(
    before: Snapshot | None, resource: ResourceName, devices: Sequence[Device], known: Mapping[DeviceId, Device] | None
) -> tuple[Snapshot, str]:
    """Return the list that follows, and why it is not all that was to be listed."""
    try:
        return _following(before, resource, devices), ""
    except Exhausted as error:
        if known is None:
            raise
        now = {device.id: device for device in devices}
        kept = [now.get(name) or replace(device, healthy=False, reason=UNLISTED) for name, device in known.items()]
        why = f"{error.message}; the {len(kept)} of the last list are offered, with their present health"
        return _following(before, resource, kept), why


def _following(before: Snapshot | None, resource: ResourceName, devices: Sequence[Device]) -> Snapshot:
    by_id = MappingProxyType({device.id: device for device in devices})
    if before is not None and len(by_id) == len(devices) and _visible(before.devices) == _visible(by_id):
        return Snapshot(before.version, by_id, before.message)
    return Snapshot(1 if before is None else before.version + 1, by_id, encode_list(resource, devices))


def _visible(devices: Mapping[DeviceId, Device]) -> dict[DeviceId, tuple[bool, tuple[int, ...]]]:
    return {name: (device.healthy, device.numa_nodes) for name, device in devices.items()}
