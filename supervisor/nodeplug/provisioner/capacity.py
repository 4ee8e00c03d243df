"""How much room each StorageClass has on this node, for the scheduler.

Owns: this node's CSIStorageCapacity objects: as many as there are classes, gone with their class or driver.
Refuses: those of other nodes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from nodeplug.contract.errors import AlreadyExists, NotFound, PluginError
from nodeplug.contract.values import VolumeCapacity, VolumeRoom
from nodeplug.csi.codec import options_in
from nodeplug.csi.driver import Driver
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.resources import CSI_STORAGE_CAPACITIES, Object
from nodeplug.provisioner.objects import capacity_labels, is_same_room, storage_capacity
from nodeplug.volumes import provisioning

LOG: Final = logging.getLogger(__name__)
_NOT_SOONER: Final = 1.0
_LISTED_EVERY: Final = 600.0
"""Seconds after which the objects are read again: somebody else may have changed them."""


class Capacity:
    """Event loop only.

    Args:
        client: who writes.
        drivers: the drivers that are served now, by name.
        node: this node.
        namespace: of the objects.
        classes: all StorageClasses.
        soon: is set to look again now.
    """

    def __init__(
        self,
        client: Client,
        drivers: Callable[[], Mapping[str, Driver]],
        node: str,
        namespace: str,
        classes: Followed,
        soon: asyncio.Event,
    ) -> None:
        self._client, self._drivers, self._node, self._namespace = client, drivers, node, namespace
        self._classes, self._soon = classes, soon
        self._written: dict[str, Object] | None = None
        self._listed = 0.0
        self._problem = ""

    async def keep(self, poll: float) -> None:
        """Keep the objects as they should be, for ever."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(poll):
                    await self._soon.wait()
            self._soon.clear()
            if not self._classes.known:
                continue
            try:
                await self._write([one async for one in self._wanted()])
                self._problem = ""
            except PluginError as error:
                if error.message != self._problem:
                    LOG.warning("the scheduler does not learn how much room there is: %s", error.message)
                self._problem, self._written = error.message, None
            await asyncio.sleep(_NOT_SOONER)

    async def _wanted(self) -> AsyncIterator[Object]:
        for name, driver in tuple(self._serving()):
            for key, storage_class in tuple(self._classes.objects.items()):
                if storage_class.get("provisioner") == name:
                    room = await self._room(driver, options_in(storage_class.get("parameters") or {}))
                    yield storage_capacity(name, key, self._node, self._namespace, driver.topology, room)

    def _serving(self) -> Iterator[tuple[str, Driver]]:
        for name, driver in self._drivers().items():
            if "volume_capacity" in driver.claimed.hooks and driver.topology:
                yield name, driver

    async def _room(self, driver: Driver, parameters: Mapping[str, str]) -> VolumeRoom:
        """Return how much a driver has left; a driver that cannot say has nothing to give."""
        request = VolumeCapacity(driver=driver.claim, parameters=parameters)
        try:
            return await driver.work("measure room", lambda steps: provisioning.capacity(steps, request))
        except PluginError as error:
            LOG.debug("no room is told for %s: %s", driver.name, error.message)
            return VolumeRoom(available=0, largest=0)

    async def _write(self, wanted: list[Object]) -> None:
        """Make the objects so, with as few questions as there are differences to what this node has written last."""
        now = asyncio.get_running_loop().time()
        if self._written is None or now - self._listed > _LISTED_EVERY:
            labels = ",".join(f"{key}={value}" for key, value in capacity_labels("", self._node).items())
            listed = await self._client.list(CSI_STORAGE_CAPACITIES, self._namespace, labels=labels)
            self._written = {one["metadata"]["name"]: _room_of(one) for one in listed}
            self._listed = now
        there, self._written = self._written, None  # whatever fails now is looked up again
        for made in wanted:
            name, room = made["metadata"]["name"], _room_of(made)
            if name not in there:
                with suppress(AlreadyExists):
                    await self._client.create(CSI_STORAGE_CAPACITIES, made, self._namespace)
            elif not is_same_room(there[name], room):
                await self._client.patch(CSI_STORAGE_CAPACITIES, name, room, self._namespace)
        names = {made["metadata"]["name"]: _room_of(made) for made in wanted}
        for name in sorted(set(there) - set(names)):
            with suppress(NotFound):
                await self._client.delete(CSI_STORAGE_CAPACITIES, name, self._namespace)
        self._written = names


def _room_of(found: Object) -> Object:
    """Return what an object says of room; a merge patch with it takes away what it does not say."""
    return {key: found.get(key) for key in ("capacity", "maximumVolumeSize")}
