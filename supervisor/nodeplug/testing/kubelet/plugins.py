"""The plugins that kubelet knows and what they list: its tables of resources.

Owns: the dial back, which plugin serves a resource, the end of streams, capacity and its grace period.
Refuses: pods.
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing.kubelet.endpoint import Endpoint, Resource, in_go
from nodeplug.testing.kubelet.registration import Refused
from nodeplug.testing.kubelet.timeouts import Switches, Timeouts


@dataclass(slots=True, eq=False)
class Plugins:
    """All plugins and resources.

    Attributes:
        switches: set by a test.
        timeouts: of dial and grace.
        changed: called when a table has changed; the checkpoint is written there.
        old_style: as kubelet 1.20: Register returns at once, options come from its request.
        by_socket: False makes the late end of a replaced stream end that of its successor.
        resources: by name.
        registrations: every request that passed kubelet's checks, in order.
        failures: dial backs of the old style that failed; such a kubelet only logs them.
    """

    switches: Switches
    timeouts: Timeouts
    changed: Callable[[], None]
    old_style: bool = False
    by_socket: bool = True
    resources: dict[str, Resource] = field(default_factory=dict)
    registrations: list[pb.RegisterRequest] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    _endpoints: list[Endpoint] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    def restore(self, names: frozenset[str]) -> None:
        """Start with the resources of a checkpoint: no plugin, no device."""
        self.resources = {name: Resource(stopped_at=time.monotonic()) for name in names}
        for resource in self.resources.values():
            resource.take(pb.ListAndWatchResponse())
            resource.lists = 0

    async def close(self) -> None:
        """Drop every connection."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.close()

    # --- registration -----------------------------------------------------------------------------------------------

    async def register(self, request: pb.RegisterRequest, folder: Path) -> None:
        """Take a plugin that called Register.

        Raises:
            Refused: the switch says so, or (new style) it cannot be dialled or does not return its options.
        """
        if self.switches.refuse:
            raise Refused(self.switches.refuse)
        endpoint = self._endpoint(request.resource_name, folder / request.endpoint.lstrip("/"))
        self.registrations.append(request)
        if self.old_style:
            endpoint.options = request.options
            self._in_background(self._connect_later(endpoint), f"dial {endpoint.path.name}")
            return
        await self._connect(endpoint, ask=True)

    async def watched(self, name: str, path: Path) -> None:
        """Take a plugin whose socket the plugin watcher found.

        Raises:
            Refused: as above.
        """
        if self.switches.refuse:
            raise Refused(self.switches.refuse)
        endpoint = self._endpoint(name, path)
        await self._connect(endpoint, ask=True)
        self.registrations.append(
            pb.RegisterRequest(version="v1beta1", endpoint=path.name, resource_name=name, options=endpoint.options)
        )

    async def _connect_later(self, endpoint: Endpoint) -> None:
        with suppress(Refused):
            await self._connect(endpoint, ask=False)

    async def _connect(self, endpoint: Endpoint, *, ask: bool) -> None:
        try:
            await self._dial(endpoint, ask=ask)
        except BaseException as error:
            if isinstance(error, Refused) and self.old_style:
                self.failures.append(f"{endpoint.resource}: {error}")
            await self._drop(endpoint)
            raise
        self._adopt(endpoint)

    async def _dial(self, endpoint: Endpoint, *, ask: bool) -> None:
        try:
            async with asyncio.timeout(self.timeouts.dial):
                if self.switches.hold_dial:
                    await asyncio.Event().wait()
                await endpoint.dial()
            if ask:
                await endpoint.ask_options()
        except TimeoutError:
            raise Refused("failed to dial device plugin: context deadline exceeded") from None
        except grpc.aio.AioRpcError as error:
            raise Refused(f"failed to get device plugin options: {in_go(error)}") from None

    def _endpoint(self, resource: str, path: Path) -> Endpoint:
        endpoint = Endpoint(resource, path, self._listed, self._ended)
        self._endpoints.append(endpoint)
        return endpoint

    async def _drop(self, endpoint: Endpoint) -> None:
        with suppress(ValueError):
            self._endpoints.remove(endpoint)
        await endpoint.close()

    def _adopt(self, endpoint: Endpoint) -> None:
        """Let the newest endpoint of a resource take over; the stream of the old one is not closed."""
        resource = self.resources.setdefault(endpoint.resource, Resource())
        resource.endpoint = endpoint
        resource.stopped_at = None
        if not self.switches.hold_streams:
            endpoint.listen()
        self.changed()

    def _listed(self, endpoint: Endpoint, response: pb.ListAndWatchResponse) -> None:
        """Take a list, even of a replaced plugin: kubelet uses only the resource's name."""
        if endpoint.resource in self.resources:
            self.resources[endpoint.resource].take(response)
            self.changed()

    def _ended(self, endpoint: Endpoint, reason: str) -> None:
        resource = self.resources.get(endpoint.resource)
        if resource is not None and (resource.endpoint is endpoint or not self.by_socket):
            resource.end(reason)
            successor = resource.endpoint
            if successor not in (None, endpoint) and successor in self._endpoints and endpoint in self._endpoints:
                # Kubelet finds the connection to close by the resource's name (server.runClient).
                self._in_background(self._drop(successor), f"disconnect {successor.path.name}")
        self.changed()

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drop(self, *, resource: str | None = None, path: Path | None = None) -> None:
        """Close the connections to the plugins of a resource, or at a socket; nothing is redialled."""
        for endpoint in [known for known in self._endpoints if resource == known.resource or path == known.path]:
            await self._drop(endpoint)

    async def deregister(self, name: str, path: Path) -> None:
        """Close the connection to the plugin whose socket is gone, which kubelet finds by the resource's name too."""
        known = self.resources.get(name)
        current = known.endpoint if known is not None else None
        if self.by_socket:
            await self.drop(path=path)
        elif current is not None:
            await self._drop(current)

    # --- tables -----------------------------------------------------------------------------------------------------

    def listed(self, name: str) -> bool:
        """Return whether a resource is in kubelet's tables: before the first list of its plugin it is not."""
        return name in self.resources and self.resources[name].table is not None

    def healthy(self) -> Mapping[str, Mapping[str, frozenset[int]]]:
        """Return the healthy devices of every resource, with their NUMA nodes."""
        return {name: known.table.healthy for name, known in self.resources.items() if known.table is not None}

    def capacity(self, name: str) -> int:
        """Return how many devices a resource has; one whose stream ended long ago is removed here, as in kubelet."""
        known = self.resources.get(name)
        if known is None or known.table is None:
            return 0
        if known.stopped_at is not None and time.monotonic() - known.stopped_at > self.timeouts.grace:
            del self.resources[name]
            self.changed()
            return 0
        return len(known.table.healthy) + len(known.table.unhealthy)

    def streams(self, name: str) -> int:
        """Return how many ListAndWatch streams are open for a resource."""
        return sum(known.resource == name and known.listening for known in self._endpoints)
