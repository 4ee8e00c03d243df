"""The admission of pods: who gets which devices, and what becomes of them afterwards.

Owns: the pods that kubelet knows, the allocation of their containers, and the calls before a container starts.
Refuses: containers: an admitted pod exists only in the ledger and nothing runs.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Final

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing.kubelet.allocation import AdmissionError, DeviceTable, Prefer, Want, pick
from nodeplug.testing.kubelet.endpoint import Endpoint, Resource, as_rejection
from nodeplug.testing.kubelet.ledger import NO_NODE, ContainerKey, DeviceAllocateInfo, Kind, Ledger
from nodeplug.testing.kubelet.plugins import Plugins
from nodeplug.testing.kubelet.topology import Hint, Policy, hints, settle

_EMPTY: Final = "&AllocateResponse{ContainerResponses:[]*ContainerAllocateResponse{},}"
"""An empty answer as Go prints it."""


@dataclass(frozen=True, slots=True)
class Container:
    """What a container asks for.

    Attributes:
        kind: regular init containers leave their devices to the pod's later containers.
        limits: units per resource.
        numa: the nodes that the topology manager settled on, or None without a hint.
    """

    kind: Kind
    limits: Mapping[str, int]
    numa: frozenset[int] | None = None


@dataclass(slots=True)
class Admission:
    """All pods.

    Attributes:
        plugins: the tables of resources.
        ledger: who holds what.
        random: order of everything that kubelet leaves to chance.
        save: writes the checkpoint.
        policy: of the topology manager, for containers without a `numa` of their own.
        machine: the NUMA nodes of the machine.
        pods: containers that kubelet knows, in the order in which they came.
        finished: those of pods that were rejected or have ended, and still exist.
        running: the containers that the runtime runs.
    """

    plugins: Plugins
    ledger: Ledger
    random: Random
    save: Callable[[], None]
    policy: Policy = "none"
    machine: frozenset[int] = frozenset({0, 1})
    pods: dict[ContainerKey, Container] = field(default_factory=dict)
    finished: dict[ContainerKey, Container] = field(default_factory=dict)
    running: set[ContainerKey] = field(default_factory=set)

    def known(self, name: str) -> bool:
        """Return whether kubelet takes a resource for one of a plugin: it has a list of it, or pods hold some of it."""
        return self.plugins.listed(name) or bool(self.ledger.in_use.get(name))

    async def admit(self, key: ContainerKey, container: Container) -> None:
        """Admit a container.

        Raises:
            AdmissionError: the pod is rejected; what its other containers hold is freed at the next check.
        """
        self.pods[key] = container
        self.finished.pop(key, None)
        self.ledger.meet(key, container.kind)
        try:
            container = self.pods[key] = replace(container, numa=self._settle(key, container))
            await self._allocate_all(key, container)
        except BaseException:
            self.remove(key.namespace, key.pod, finished=True)
            raise
        if container.kind != "init":  # a regular init container ends
            self.running.add(key)

    def _settle(self, key: ContainerKey, container: Container) -> frozenset[int] | None:
        """Ask the topology manager, unless the test has said what it settles on."""
        if container.numa is not None or self.policy == "none":
            return container.numa
        self.forget_finished()
        offers = [self._offer(key, name, size) for name, size in container.limits.items() if self.known(name)]
        return settle(self.policy, self.machine, offers)

    def _offer(self, key: ContainerKey, name: str, size: int) -> list[Hint] | None:
        resource = self.plugins.resources.get(name, Resource())
        table = resource.table or DeviceTable()
        if not table.aligned and not (self.plugins.old_style and resource.empty_topology):
            return None
        held = self.ledger.held(key, name)
        if held:
            return hints(table, self.machine, held, held, size) if len(held) == size else []
        reusable = self.ledger.reusable(key, name)
        available = table.healthy.keys() - self.ledger.in_use.get(name, set())
        return hints(table, self.machine, available, reusable, size)

    async def readmit(self) -> dict[tuple[str, str], AdmissionError]:
        """Meet every pod again, as kubelet does right after its start, before anything else.

        Running containers need nothing. All others are checked: regular init containers that ended long ago, and after
        a reboot every container.

        Returns:
            The pods that were rejected for good, by namespace and name.
        """
        rejected: dict[tuple[str, str], AdmissionError] = {}
        for key, container in list(self.pods.items()):
            place = (key.namespace, key.pod)
            if place in rejected:
                continue
            try:
                await self._allocate_all(key, container, starting=True)
            except AdmissionError as error:
                rejected[place] = error
                self.remove(*place, finished=True)
        return rejected

    async def _allocate_all(self, key: ContainerKey, container: Container, *, starting: bool = False) -> None:
        starting = starting or not self.plugins.switches.pods_known
        allocated = False
        try:
            for name in self.random.sample(sorted(container.limits), len(container.limits)):
                if not self.known(name):
                    continue
                self.forget_finished(starting=starting)
                if starting and key in self.running and not self.plugins.old_style:
                    continue
                allocated |= await self._allocate(key, name, container)
        finally:
            if allocated:
                self.save()

    async def _allocate(self, key: ContainerKey, name: str, container: Container) -> bool:
        """Allocate what a container wants of one resource; return whether the plugin was called."""
        resource = self.plugins.resources.get(name, Resource())
        want = Want(
            name,
            container.limits[name],
            self.ledger.held(key, name),
            self.ledger.reusable(key, name),
            self.ledger.in_use.setdefault(name, set()),
            container.numa,
            owner=f'pod "{key.pod_uid}" container "{key.container}"',
            old_style=self.plugins.old_style,
        )
        with self.ledger.picking(name, want.taken):
            ids = await pick(want, resource.table, self._prefer(resource.endpoint), self.random)
            if not ids:
                return False
            try:
                response = await self._call(name, ids)
            except BaseException:
                want.taken.clear()
                self.ledger.rebuild()
                raise
            if not response.container_responses:
                raise AdmissionError(f"no containers return in allocation response {_EMPTY}")
            entry = DeviceAllocateInfo(self._by_node(name, ids), response.container_responses[0])
            self.ledger.entries[key, name] = entry
        return True

    async def _call(self, name: str, ids: Collection[str]) -> pb.AllocateResponse:
        """Call Allocate, without a deadline."""
        resource = self.plugins.resources.get(name)
        if resource is None:
            raise AdmissionError(f"unknown Device Plugin {name}")
        if resource.endpoint is None:
            raise AdmissionError(f"endpoint {name} has been stopped")
        resource.endpoint.refuse_stopped()
        request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=self._shuffled(ids))])
        async with as_rejection(""):
            return await resource.endpoint.stub.Allocate(request)

    def _by_node(self, name: str, ids: Collection[str]) -> dict[int, frozenset[str]]:
        resource = self.plugins.resources.get(name)
        table = resource.table if resource is not None else None
        all_nodes = {**table.healthy, **table.unhealthy} if table is not None else {}
        none = 0 if self.plugins.old_style else NO_NODE  # kubelet 1.20 says node 0 where there is none
        found: dict[int, set[str]] = {}
        for device in ids:
            for node in all_nodes.get(device) or (none,):
                found.setdefault(node, set()).add(device)
        return {node: frozenset(names) for node, names in found.items()}

    def _prefer(self, endpoint: Endpoint | None) -> Prefer | None:
        if endpoint is None or not endpoint.options.get_preferred_allocation_available:
            return None

        async def prefer(available: Collection[str], must: Collection[str], size: int) -> Collection[str]:
            container = pb.ContainerPreferredAllocationRequest(
                available_deviceIDs=self._shuffled(available),
                must_include_deviceIDs=self._shuffled(must),
                allocation_size=size,
            )
            request = pb.PreferredAllocationRequest(container_requests=[container])
            prefix = "device plugin GetPreferredAllocation rpc failed with err: "
            try:
                endpoint.refuse_stopped()
            except AdmissionError as error:
                raise AdmissionError(f"{prefix}{error}") from None
            async with as_rejection(prefix):
                response = await endpoint.stub.GetPreferredAllocation(request)
            return response.container_responses[0].deviceIDs if response.container_responses else ()

        return prefer

    def _shuffled(self, ids: Collection[str]) -> list[str]:
        return self.random.sample(sorted(ids), len(ids))

    # --- afterwards -------------------------------------------------------------------------------------------------

    async def start(self, key: ContainerKey) -> pb.ContainerAllocateResponse:
        """Do what kubelet does before each start of a container, and return what the container gets.

        Raises:
            LookupError: kubelet does not know the container.
            AdmissionError: a plugin failed or is down; the container does not start.
        """
        if key not in self.pods:
            raise LookupError(f"kubelet has no container {key.namespace}/{key.pod}/{key.container}: admit it first")
        container = self.pods[key]
        again = False
        for name in self.random.sample(sorted(container.limits), len(container.limits)):
            if not self.known(name) or container.limits[name] == 0:
                continue
            await self._before_start(key, name)
            again |= (key, name) not in self.ledger.entries
        if again:  # kubelet knew the pod before its plugin, or skipped the resource
            await self._allocate_all(key, container)
        if container.kind != "init":
            self.running.add(key)
        held = self.ledger.of(key)
        return merged([held[name].response for name in self.random.sample(sorted(held), len(held))])

    async def _before_start(self, key: ContainerKey, name: str) -> None:
        resource = self.plugins.resources.get(name)
        if resource is None:
            raise AdmissionError(f"endpoint not found in cache for a registered resource: {name}")
        endpoint = resource.endpoint
        if endpoint is None or not endpoint.options.pre_start_required:
            return  # after a restart kubelet no longer knows the options
        if (key, name) not in self.ledger.entries:
            raise AdmissionError(
                f"no devices found allocated in local cache for pod {key.pod_uid}, "
                f"container {key.container}, resource {name}"
            )
        prefix = "device plugin PreStartContainer rpc failed with err: "
        try:
            endpoint.refuse_stopped()
        except AdmissionError as error:
            raise AdmissionError(f"{prefix}{error}") from None
        request = pb.PreStartContainerRequest(devices_ids=self._shuffled(self.ledger.held(key, name)))
        async with as_rejection(prefix):
            await endpoint.stub.PreStartContainer(request, timeout=self.plugins.timeouts.prestart)

    def remove(self, namespace: str, pod: str, *, finished: bool = False) -> None:
        """Forget a pod; what it held is free at the next admission or look of podresources."""
        gone = {key: known for key, known in self.pods.items() if (key.namespace, key.pod) == (namespace, pod)}
        self.pods = {key: known for key, known in self.pods.items() if key not in gone}
        self.running -= gone.keys()
        kept = {key: known for key, known in self.finished.items() if (key.namespace, key.pod) != (namespace, pod)}
        self.finished = {**kept, **gone} if finished else kept

    def forget_finished(self, *, starting: bool = False) -> None:
        """Free what pods held that are gone; kubelet does not before it knows all its pods."""
        if self.plugins.switches.pods_known and not starting:
            self.ledger.forget_finished(self.pods.keys())

    def health(self, key: ContainerKey) -> dict[str, dict[str, str]]:
        """Return `allocatedResourcesStatus` of a container: the health of each device, by resource and id."""
        found: dict[str, dict[str, str]] = {}
        for name, entry in self.ledger.of(key).items():
            resource = self.plugins.resources.get(name)
            reported = resource.reported if resource is not None else {}
            found[name] = {id_: "Healthy" if reported.get(id_, True) else "Unhealthy" for id_ in sorted(entry.ids)}
        return found

    def listed(self) -> list[tuple[ContainerKey, Mapping[str, DeviceAllocateInfo]]]:
        """Return what podresources shows, which frees what finished pods held."""
        self.forget_finished()
        switches, old_style = self.plugins.switches, self.plugins.old_style
        kinds = ("app",) if old_style else ("app", "sidecar")
        pods = {**self.pods, **(self.finished if old_style else {})}
        return [
            (key, self.ledger.of(key))
            for key, container in sorted(pods.items(), key=lambda item: item[0])
            if container.kind in kinds and (switches.pods_known or key.pod in switches.static_pods)
        ]


def merged(responses: Collection[pb.ContainerAllocateResponse]) -> pb.ContainerAllocateResponse:
    """Put the answers of several plugins together: of what two of them set, the first one wins.

    Kubelet takes them in random order and only logs the conflict.
    """
    whole = pb.ContainerAllocateResponse()
    for response in responses:
        for name, value in response.envs.items():
            if name not in whole.envs:  # older versions of protobuf answer setdefault with an empty text
                whole.envs[name] = value
        for name, value in response.annotations.items():
            if name not in whole.annotations:
                whole.annotations[name] = value
        mounts = {mount.container_path for mount in whole.mounts}
        whole.mounts.extend(mount for mount in response.mounts if mount.container_path not in mounts)
        devices = {device.container_path for device in whole.devices}
        whole.devices.extend(device for device in response.devices if device.container_path not in devices)
        names = {device.name for device in whole.cdi_devices}
        whole.cdi_devices.extend(device for device in response.cdi_devices if device.name not in names)
    return whole
