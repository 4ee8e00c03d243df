"""The stand-in itself: kubelet's folders, sockets, tables, and the admission of pods.

Owns: start, restart and death; what each resource has; who may have it.
Refuses: containers: an admitted pod is an entry in the ledger and nothing runs.
"""

import asyncio
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Literal, Self

import grpc
import grpc.aio

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import podresources_v1_pb2_grpc as podresources_grpc
from nodeplug.testing.kubelet.allocation import AdmissionError, Prefer, Want, pick
from nodeplug.testing.kubelet.endpoint import Endpoint, Resource, as_rejection
from nodeplug.testing.kubelet.ledger import CHECKPOINT, ContainerKey, Entry, Ledger
from nodeplug.testing.kubelet.podresources import PodResourcesLister
from nodeplug.testing.kubelet.registration import Refused, Registrar, Watcher

Wipe = Literal["sockets", "files", "nothing"]
"""What a start removes from device-plugins: sockets (new), every file but the checkpoint (old), or nothing."""


class Kubelet:
    """Kubelet's device manager, on folders below `root`.

    Args:
        root: takes the place of /var/lib/kubelet; keep it short, socket paths have 107 bytes.
        seed: of every choice that kubelet leaves to chance.
        old_style: as kubelet 1.20: Register answers at once, options come from its request.
        keyed_by: "socket" (new), or "resource" (old: the late end of a replaced stream hurts its successor).
        dial_timeout: seconds; kubelet has 10.
        grace: seconds from the end of a stream to the resource's removal; kubelet has 300.
        watch_plugins: also run the plugin watcher.

    Attributes:
        registrations: every request that passed kubelet's checks, in order.
        refuse: a sentence with which every registration is refused, or empty.
        hold_dial: True keeps every dial back from succeeding until its timeout.
        pods_known: False as long as kubelet has not heard of its pods from the API server.
        static_pods: names of pods that kubelet knows without it, from its manifest folder.
        limited: True makes podresources refuse every call by its rate limit.
    """

    def __init__(
        self,
        root: Path,
        *,
        seed: int = 0,
        old_style: bool = False,
        keyed_by: Literal["socket", "resource"] = "socket",
        dial_timeout: float = 10.0,
        grace: float = 300.0,
        watch_plugins: bool = False,
    ) -> None:
        self.device_plugins = root / "device-plugins"
        self.plugins_registry = root / "plugins_registry"
        self.podresources_socket = root / "pod-resources" / "kubelet.sock"
        self.registrations: list[pb.RegisterRequest] = []
        self.refuse = ""
        self.hold_dial = False
        self.pods_known = True
        self.static_pods: set[str] = set()
        self.limited = False
        self.resources: dict[str, Resource] = {}
        self.ledger = Ledger()
        self.watcher = Watcher(self.plugins_registry, self._accept_watched, self._forget_watched)
        self._pods: dict[ContainerKey, bool] = {}
        self._random = Random(seed)  # noqa: S311 - repeatable choices, no secrets
        self._old_style = old_style
        self._by_socket = keyed_by == "socket"
        self._dial_timeout = dial_timeout
        self._grace = grace
        self._watch_plugins = watch_plugins
        self._endpoints: list[Endpoint] = []
        self._reserved: dict[str, set[str]] = {}
        self._changed = asyncio.Event()
        self._registrar: grpc.aio.Server | None = None
        self._lister: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def socket(self) -> Path:
        """The registration socket."""
        return self.device_plugins / "kubelet.sock"

    async def start(self, *, wipe: Wipe = "sockets") -> None:
        """Start as kubelet does: read the checkpoint, clean the folder, listen."""
        for folder in (self.device_plugins, self.plugins_registry, self.podresources_socket.parent):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)
        remembered = self.ledger.restore(
            self.device_plugins, frozenset(key for key, init in self._pods.items() if init)
        )
        self.resources = {name: Resource(stopped_at=time.monotonic()) for name in remembered}
        self._clean(wipe)
        await self._listen()
        self._lister = grpc.aio.server()
        lister = PodResourcesLister(self._known_pods, lambda: self.ledger, self._healthy, lambda: self.limited)
        podresources_grpc.add_PodResourcesListerServicer_to_server(lister, self._lister)
        self._lister.add_insecure_port(f"unix:{self.podresources_socket}")
        await self._lister.start()
        if self._watch_plugins:
            self._watching = asyncio.create_task(self.watcher.run(), name="plugin watcher")

    async def stop(self) -> None:
        """End: streams are dropped and both sockets go; the checkpoint and other files stay."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None
        self.watcher.known.clear()
        for server in (self._registrar, self._lister):
            if server is not None:
                await server.stop(None)
        self._registrar = self._lister = None
        endpoints, self._endpoints = self._endpoints, []
        for endpoint in endpoints:
            await endpoint.close()

    async def kill(self) -> None:
        """End as by SIGKILL: kubelet.sock stays behind and refuses connections."""
        await self.stop()
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.socket))

    async def restart(self, *, wipe: Wipe = "sockets") -> None:
        """Stop and start: every known resource comes back without devices, pods keep what they hold."""
        await self.stop()
        await self.start(wipe=wipe)

    async def recreate_socket(self) -> None:
        """Listen anew on kubelet.sock without a restart: streams and tables stay (kubelet does so after an error)."""
        if self._registrar is not None:
            await self._registrar.stop(None)
        await self._listen()

    async def _listen(self) -> None:
        self._registrar = grpc.aio.server()
        pb_grpc.add_RegistrationServicer_to_server(Registrar(self._accept), self._registrar)
        self._registrar.add_insecure_port(f"unix:{self.socket}")
        await self._registrar.start()

    def _clean(self, wipe: Wipe) -> None:
        for path in self.device_plugins.iterdir():
            if path.is_dir() or path.name == CHECKPOINT:
                continue
            if wipe == "files" or path == self.socket or (wipe == "sockets" and path.is_socket()):
                path.unlink()

    # --- plugins ----------------------------------------------------------------------------------------------------

    async def _accept(self, request: pb.RegisterRequest) -> None:
        if self.refuse:
            raise Refused(self.refuse)
        endpoint = self._endpoint(request.resource_name, self.device_plugins / request.endpoint)
        self.registrations.append(request)
        if self._old_style:
            endpoint.options = request.options
            self._adopt(endpoint)
            return
        try:
            await self._dial(endpoint)
        except BaseException:
            await self._drop(endpoint)
            raise
        self._adopt(endpoint)

    async def _dial(self, endpoint: Endpoint) -> None:
        try:
            async with asyncio.timeout(self._dial_timeout):
                if self.hold_dial:
                    await asyncio.Event().wait()
                await endpoint.dial()
            await endpoint.ask_options()
        except TimeoutError:
            raise Refused("failed to dial device plugin: context deadline exceeded") from None
        except grpc.aio.AioRpcError as error:
            raise Refused(f"failed to get device plugin options: {error.details()}") from None

    async def _accept_watched(self, resource: str, path: Path) -> None:
        if self.refuse:
            raise Refused(self.refuse)
        endpoint = self._endpoint(resource, path)
        await self._dial(endpoint)
        self.registrations.append(
            pb.RegisterRequest(version="v1beta1", endpoint=path.name, resource_name=resource, options=endpoint.options)
        )
        self._adopt(endpoint)

    async def _forget_watched(self, path: Path) -> None:
        for endpoint in [known for known in self._endpoints if known.path == path]:
            await self._drop(endpoint)

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
        endpoint.listen()
        self._changed.set()

    def _listed(self, endpoint: Endpoint, response: pb.ListAndWatchResponse) -> None:
        resource = self.resources.get(endpoint.resource)
        if resource is not None and resource.endpoint is endpoint:
            resource.take(response)
            self._checkpoint()
            self._changed.set()

    def _ended(self, endpoint: Endpoint, reason: str) -> None:
        resource = self.resources.get(endpoint.resource)
        if resource is not None and (resource.endpoint is endpoint or not self._by_socket):
            resource.end(reason)
        self._changed.set()

    async def drop_streams(self, resource: str) -> None:
        """Close every connection to the plugins of a resource, as after an overflow; nothing is redialled."""
        for endpoint in [known for known in self._endpoints if known.resource == resource]:
            await self._drop(endpoint)

    # --- what there is ----------------------------------------------------------------------------------------------

    def allocatable(self, resource: str) -> int:
        """Return how many healthy devices a resource has."""
        return len(self._healthy().get(resource, ()))

    def capacity(self, resource: str) -> int:
        """Return how many devices a resource has; one whose stream ended long ago is removed here, as in kubelet."""
        known = self.resources.get(resource)
        if known is not None and known.stopped_at is not None and time.monotonic() - known.stopped_at > self._grace:
            del self.resources[resource]
            known = None
        return 0 if known is None or known.table is None else len(known.table.healthy) + len(known.table.unhealthy)

    def streams(self, resource: str) -> int:
        """Return how many ListAndWatch streams are open for a resource."""
        return sum(known.resource == resource and known.listening for known in self._endpoints)

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until a condition on this object holds.

        Raises:
            TimeoutError: it does not come to hold.
        """
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):  # conditions may also look at what does not signal
                        await self._changed.wait()

    async def until_allocatable(self, resource: str, count: int, seconds: float = 20.0) -> None:
        """Wait until a resource has exactly so many healthy devices."""
        await self.until(lambda: self.allocatable(resource) == count, seconds)

    def _known_pods(self) -> Collection[ContainerKey]:
        return [key for key in self._pods if self.pods_known or key.pod in self.static_pods]

    def _healthy(self) -> Mapping[str, Collection[str]]:
        return {
            name: resource.table.healthy if resource.table is not None else ()
            for name, resource in self.resources.items()
        }

    def _checkpoint(self) -> None:
        self.ledger.write(self.device_plugins, {name: frozenset(ids) for name, ids in self._healthy().items()})

    # --- pods -------------------------------------------------------------------------------------------------------

    async def admit(
        self,
        pod: str,
        limits: Mapping[str, int],
        *,
        container: str = "main",
        namespace: str = "default",
        init: bool = False,
        numa: Collection[int] | None = None,
    ) -> Mapping[str, pb.ContainerAllocateResponse]:
        """Admit one container of a pod and allocate its devices.

        Args:
            pod: its name.
            limits: units per resource. One that kubelet has never seen is skipped silently.
            container: its name.
            namespace: the pod's.
            init: a regular init container: what it gets, later containers of the pod may take over.
            numa: the nodes that the topology manager settled on.

        Returns:
            The plugins' answers by resource.

        Raises:
            AdmissionError: the pod is rejected, and holds nothing.
        """
        key = ContainerKey(namespace, pod, container)
        self._pods[key] = init
        hint = None if numa is None else frozenset(numa)
        try:
            for name in self._random.sample(sorted(limits), len(limits)):
                if name in self.resources:
                    await self._allocate(key, name, limits[name], hint)
        except AdmissionError:
            self.remove_pod(pod, namespace)
            raise
        self._checkpoint()
        return {of: entry.response for (owner, of), entry in self.ledger.entries.items() if owner == key}

    async def _allocate(self, key: ContainerKey, name: str, required: int, numa: frozenset[int] | None) -> None:
        resource = self.resources[name]
        reserved = self._reserved.setdefault(name, set())
        endpoint = resource.endpoint
        while True:
            held, reusable = self.ledger.held(key, name), self.ledger.reusable(key, name)
            want = Want(name, required, held, reusable, self.ledger.in_use(name) | reserved, numa)
            ids = await pick(want, resource.table, self._prefer(endpoint), self._random)
            if not ids & ((self.ledger.in_use(name) - reusable) | reserved):
                break  # else another admission took some while the plugin was asked
        if not ids or endpoint is None:
            return
        reserved |= ids
        try:
            request = pb.AllocateRequest(
                container_requests=[pb.ContainerAllocateRequest(devices_ids=self._random.sample(sorted(ids), len(ids)))]
            )
            async with as_rejection(""):
                response = await endpoint.stub.Allocate(request)
            if not response.container_responses:
                raise AdmissionError("no containers return in allocation response")
            self.ledger.entries[key, name] = Entry(ids, response.container_responses[0], self._pods[key])
        finally:
            reserved -= ids

    def _prefer(self, endpoint: Endpoint | None) -> Prefer | None:
        if endpoint is None or not endpoint.options.get_preferred_allocation_available:
            return None

        async def prefer(available: Collection[str], must: Collection[str], size: int) -> Collection[str]:
            container = pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=sorted(available), must_include_deviceIDs=sorted(must), allocation_size=size
            )
            request = pb.PreferredAllocationRequest(container_requests=[container])
            async with as_rejection("device plugin GetPreferredAllocation rpc failed with err: "):
                response = await endpoint.stub.GetPreferredAllocation(request)
            return response.container_responses[0].deviceIDs if response.container_responses else ()

        return prefer

    async def start_container(self, pod: str, container: str = "main", namespace: str = "default") -> None:
        """Do what kubelet does before each start of a container: PreStartContainer where a plugin wants it.

        Raises:
            AdmissionError: the plugin failed or is away; the container does not start.
        """
        key = ContainerKey(namespace, pod, container)
        for (owner, name), entry in self.ledger.entries.items():
            resource = self.resources.get(name)
            endpoint = resource.endpoint if resource is not None else None
            if owner != key or endpoint is None or not endpoint.options.pre_start_required:
                continue
            if endpoint.stopped:
                raise AdmissionError(f"endpoint {endpoint.path} has been stopped")
            async with as_rejection("device plugin PreStartContainer rpc failed with err: "):
                request = pb.PreStartContainerRequest(devices_ids=sorted(entry.ids))
                await endpoint.stub.PreStartContainer(request, timeout=30)

    def remove_pod(self, pod: str, namespace: str = "default") -> None:
        """Forget a pod and free its devices; plugins are not told, since the API has no such call."""
        self._pods = {key: init for key, init in self._pods.items() if (key.namespace, key.pod) != (namespace, pod)}
        self.ledger.remove_pod(namespace, pod)
        self._checkpoint()
