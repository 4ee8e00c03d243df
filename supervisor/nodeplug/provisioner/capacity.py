"""How much room each StorageClass has on this node, for the scheduler.

Owns: this node's CSIStorageCapacity objects: as many as there are classes, gone with their class or driver.
Refuses: those of other nodes.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final, cast

from nodeplug.contract.errors import AlreadyExists, NotFound, PluginError
from nodeplug.contract.values import VolumeCapacity, VolumeClaim
from nodeplug.csi.codec import options_in
from nodeplug.csi.driver import Driver
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.resources import CSI_STORAGE_CAPACITIES, Object
from nodeplug.provisioner.followed import Followed
from nodeplug.provisioner.objects import capacity_labels, storage_capacity
from nodeplug.volumes import provisioning

LOG: Final = logging.getLogger(__name__)
_NOT_SOONER: Final = 1.0


class Capacity:
    """Event loop only.

    Args:
        client: who writes.
        drivers: the drivers that are served now, by name.
        node: this node.
        namespace: of the objects.
        classes: all StorageClasses.
    """

    def __init__(
        self,
        client: Client,
        drivers: Callable[[], Mapping[str, Driver]],
        node: str,
        namespace: str,
        classes: Followed,
    ) -> None:
        self._client, self._drivers, self._node, self._namespace = client, drivers, node, namespace
        self._classes = classes
        self._soon = asyncio.Event()
        self._problem = ""

    def soon(self) -> None:
        """Look again now: a volume has come or gone, or a class."""
        self._soon.set()

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
                self._problem = error.message
            await asyncio.sleep(_NOT_SOONER)

    async def _wanted(self) -> AsyncIterator[Object]:
        for name, driver in self._serving():
            for key, storage_class in self._classes.objects.items():
                if storage_class.get("provisioner") == name:
                    room = await self._room(driver, options_in(storage_class.get("parameters") or {}))
                    yield storage_capacity(name, key, self._node, self._namespace, driver.topology, room)

    def _serving(self) -> Iterator[tuple[str, Driver]]:
        for name, driver in self._drivers().items():
            if "volume_capacity" in driver.claimed.hooks and driver.topology:
                yield name, driver

    async def _room(self, driver: Driver, parameters: Mapping[str, str]) -> int:
        """Return how much a driver has left; a driver that cannot say has nothing to give."""
        request = VolumeCapacity(driver=cast("VolumeClaim", driver.claimed.claim).name, parameters=parameters)
        try:
            return await driver.work("measure room", lambda steps: provisioning.capacity(steps, request))
        except PluginError as error:
            LOG.debug("no room is told for %s: %s", driver.name, error.message)
            return 0

    async def _write(self, wanted: list[Object]) -> None:
        labels = ",".join(f"{key}={value}" for key, value in capacity_labels("", self._node).items())
        listed = await self._client.list(CSI_STORAGE_CAPACITIES, self._namespace, labels=labels)
        there = {one["metadata"]["name"]: one for one in listed}
        for made in wanted:
            name = made["metadata"]["name"]
            found = there.pop(name, None)
            if found is None:
                with suppress(AlreadyExists):
                    await self._client.create(CSI_STORAGE_CAPACITIES, made, self._namespace)
            elif found.get("capacity") != made["capacity"]:
                patch = {"capacity": made["capacity"]}
                with suppress(NotFound):
                    await self._client.patch(CSI_STORAGE_CAPACITIES, name, patch, self._namespace)
        for name in there:
            with suppress(NotFound):
                await self._client.delete(CSI_STORAGE_CAPACITIES, name, self._namespace)
