"""The stand-in itself: kubelet's sockets, its starts and its ends, and the door to its rooms.

Owns: start, restart, reboot and crash; the interface for tests.
Refuses: containers: an admitted pod exists only in the ledger and nothing runs.
"""

import asyncio
import uuid
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Literal, Self

import grpc
import grpc.aio

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import podresources_v1_pb2_grpc as podresources_grpc
from nodeplug.testing.kubelet.admission import Admission, Container
from nodeplug.testing.kubelet.allocation import AdmissionError
from nodeplug.testing.kubelet.checkpoint import read_checkpoint, write_checkpoint
from nodeplug.testing.kubelet.endpoint import Resource
from nodeplug.testing.kubelet.folder import TRIES, Folders, Wipe
from nodeplug.testing.kubelet.ledger import ContainerKey, Kind, Ledger
from nodeplug.testing.kubelet.plugin_watcher import Watcher
from nodeplug.testing.kubelet.plugins import Plugins
from nodeplug.testing.kubelet.podresources import PodResourcesLister
from nodeplug.testing.kubelet.registration import Registrar
from nodeplug.testing.kubelet.timeouts import Switches, Timeouts
from nodeplug.testing.kubelet.topology import Policy

__all__ = ["Kubelet", "UnknownResourceError", "Wipe"]


class UnknownResourceError(LookupError):
    """A pod asks for a resource of which kubelet has no list: a real one would admit it without any device."""


class Kubelet(Switches):
    """Kubelet's device manager, on folders below `root`. See `Switches` for what a test turns while it runs.

    Args:
        root: takes the place of /var/lib/kubelet; keep it short, socket paths have 107 bytes.
        seed: of every choice that kubelet leaves to chance.
        old_style: as kubelet 1.20: Register returns at once, options come from its request, fewer checks.
        keyed_by: "socket", or "resource" (released: the late end of a replaced stream ends that of its successor).
        dial_timeout: seconds; kubelet has 10.
        grace: seconds from the end of a stream to the resource's removal; kubelet has 300.
        watch_plugins: also run the plugin watcher.
        topology: the topology manager's policy, for admissions without `numa`.
        numa_nodes: how many NUMA nodes the machine has.
        timeouts: all of kubelet's constants, for instance `Timeouts().scaled(0.01)`.

    Attributes:
        registrations: every request that passed kubelet's checks, in order.
        resources: kubelet's tables by resource.
        ledger: who holds what.
        watcher: the plugin watcher; `watcher.refusals` says why it refused a socket.
    """

    def __init__(
        self,
        root: Path,
        *,
        seed: int = 0,
        old_style: bool = False,
        keyed_by: Literal["socket", "resource"] = "socket",
        dial_timeout: float | None = None,
        grace: float | None = None,
        watch_plugins: bool = False,
        topology: Policy = "none",
        numa_nodes: int = 2,
        timeouts: Timeouts | None = None,
    ) -> None:
        super().__init__()
        timeouts = timeouts or Timeouts()
        timeouts = replace(timeouts, dial=timeouts.dial if dial_timeout is None else dial_timeout)
        timeouts = replace(timeouts, grace=timeouts.grace if grace is None else grace)
        self.folders = Folders(root)
        self.ledger = Ledger()
        self._old_style = old_style
        self._plugins = Plugins(self, timeouts, self._table_changed, old_style, keyed_by == "socket")
        random = Random(seed)  # noqa: S311 - repeatable choices, no secrets
        machine = frozenset(range(numa_nodes))
        self._admission = Admission(self._plugins, self.ledger, random, self._save, topology, machine)
        self.watcher = Watcher(self.plugins_registry, self._plugins.watched, self._forget_watched, timeouts)
        self._watch_plugins = watch_plugins
        self._boot = str(uuid.uuid5(uuid.NAMESPACE_OID, str(seed)))
        self._changed = asyncio.Event()
        self._registrar: grpc.aio.Server | None = None
        self._lister: grpc.aio.Server | None = None
        self._watching: asyncio.Task[None] | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self, *, wipe: Wipe | None = None) -> None:
        """Start as kubelet does: read the checkpoint, clean the folder, listen.

        Args:
            wipe: what to remove; None: sockets, or with `old_style` every file but the checkpoint.
        """
        self.folders.make()
        self.ledger.reset()
        self._plugins.restore(read_checkpoint(self.device_plugins, self.ledger))
        self.folders.clean(wipe or ("files" if self._old_style else "sockets"))
        await self._listen()
        self._lister = grpc.aio.server()
        lister = PodResourcesLister(
            self._admission.listed, self._plugins.healthy, lambda: self.limited, old_style=self._old_style
        )
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
        self.watcher.reset()
        for server in (self._registrar, self._lister):
            if server is not None:
                await server.stop(None)
        self._registrar = self._lister = None
        await self._plugins.close()

    async def kill(self) -> None:
        """End as by SIGKILL: kubelet.sock stays behind and refuses connections."""
        await self.stop()
        self.folders.leave_dead_socket()

    async def restart(self, *, wipe: Wipe | None = None) -> None:
        """Stop and start: every known resource comes back without devices, pods keep what they hold.

        `readmit` does what kubelet then does with its pods.
        """
        await self.stop()
        await self.start(wipe=wipe)

    async def readmit(self) -> Mapping[tuple[str, str], AdmissionError]:
        """Meet every pod again, as kubelet does right after a start; plugins may or may not be back by then.

        Running containers need nothing; regular init containers that ended are checked as if they were new
        (kubernetes#138446), and after a reboot so is every container.

        Returns:
            The pods that are rejected for good, by namespace and name.
        """
        return await self._admission.readmit()

    async def reboot(self, *, wipe: Wipe | None = None) -> Mapping[tuple[str, str], AdmissionError]:
        """Restart with nothing running, and meet every pod at once, before any plugin can be back.

        Returns:
            The pods that are rejected for good, by namespace and name.
        """
        await self.stop()
        self._admission.running.clear()
        self._boot = str(uuid.uuid5(uuid.UUID(self._boot), "next"))
        await self.start(wipe=wipe)
        return await self.readmit()

    async def recreate_socket(self, *, same_inode: bool = False) -> None:
        """Recreate kubelet.sock without a restart: streams and tables stay (kubelet does so after an error).

        Args:
            same_inode: insist on the inode number of the old socket, which ext4 reuses unless another process creates
                a file at that moment.

        Raises:
            OSError: the file system does not reuse numbers (tmpfs), or others create files there.
        """
        before = self.socket.stat().st_ino
        for _ in range(TRIES):
            if self._registrar is not None:
                await self._registrar.stop(None)
            await self._listen()
            if not same_inode or self.socket.stat().st_ino == before:
                return
        raise OSError(f"{self.socket} did not get inode {before} again: choose a folder on an ext4 that is quiet")

    async def _listen(self) -> None:
        self._registrar = grpc.aio.server()
        registrar = Registrar(lambda request: self._plugins.register(request, self.device_plugins))
        pb_grpc.add_RegistrationServicer_to_server(registrar, self._registrar)
        self._registrar.add_insecure_port(f"unix:{self.socket}")
        await self._registrar.start()

    def _table_changed(self) -> None:
        self._save()
        self._changed.set()

    def _save(self) -> None:
        boot = "" if self._old_style else self._boot
        write_checkpoint(self.device_plugins, self.ledger, self._plugins.healthy(), boot)

    # --- what there is ----------------------------------------------------------------------------------------------

    @property
    def device_plugins(self) -> Path:
        """Where plugins have their sockets."""
        return self.folders.device_plugins

    @property
    def socket(self) -> Path:
        """The registration socket."""
        return self.folders.socket

    @property
    def plugins_registry(self) -> Path:
        """Where the plugin watcher looks."""
        return self.folders.plugins_registry

    @property
    def podresources_socket(self) -> Path:
        """The socket of the podresources API."""
        return self.folders.podresources_socket

    @property
    def registrations(self) -> list[pb.RegisterRequest]:
        """Every request that passed kubelet's checks, in order."""
        return self._plugins.registrations

    @property
    def failures(self) -> list[str]:
        """Dial backs that failed with `old_style`, in order: such a kubelet only logs them."""
        return self._plugins.failures

    @property
    def resources(self) -> Mapping[str, Resource]:
        """Kubelet's tables by resource."""
        return self._plugins.resources

    def listed(self, resource: str) -> bool:
        """Return whether the plugin that serves a resource now has sent a list, be it an empty one."""
        known = self.resources.get(resource)
        return known is not None and known.endpoint is not None and known.endpoint.first_list_at is not None

    def allocatable(self, resource: str) -> int:
        """Return how many healthy devices a resource has."""
        return len(self._plugins.healthy().get(resource, ()))

    def capacity(self, resource: str) -> int:
        """Return how many devices a resource has; one whose stream ended long ago is removed here, as in kubelet."""
        return self._plugins.capacity(resource)

    def streams(self, resource: str) -> int:
        """Return how many ListAndWatch streams are open for a resource."""
        return self._plugins.streams(resource)

    async def drop_streams(self, resource: str) -> None:
        """Close every connection to the plugins of a resource, as after an overflow; nothing is redialled."""
        await self._plugins.drop(resource=resource)

    async def _forget_watched(self, name: str, path: Path) -> None:
        await self._plugins.deregister(name, path)

    async def until(self, condition: Callable[[], bool], seconds: float = 20.0) -> None:
        """Wait until a condition on this object holds.

        Raises:
            TimeoutError: it does not become true.
        """
        async with asyncio.timeout(seconds):
            while not condition():
                self._changed.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(0.05):  # conditions may also depend on what does not signal
                        await self._changed.wait()

    async def until_allocatable(self, resource: str, count: int, seconds: float = 20.0) -> None:
        """Wait until a resource has exactly so many healthy devices.

        Raises:
            TimeoutError: it does not get them.
        """
        await self.until(lambda: self.allocatable(resource) == count, seconds)

    # --- pods -------------------------------------------------------------------------------------------------------

    async def admit(
        self,
        pod: str,
        limits: Mapping[str, int],
        *,
        container: str = "main",
        namespace: str = "default",
        init: bool = False,
        restartable: bool = False,
        numa: Collection[int] | None = None,
        lenient: bool = False,
    ) -> Mapping[str, pb.ContainerAllocateResponse]:
        """Admit one container of a pod and allocate its devices; call it for init containers first, as kubelet does.

        Several calls may run at once. Kubelet admits one pod at a time, but repeats an allocation at a container's
        start in parallel, so a plugin has to cope with it; no id is allocated twice here.

        Args:
            pod: its name.
            limits: units per resource.
            container: its name.
            namespace: the pod's.
            init: a regular init container: what it gets, later containers of the pod may take over.
            restartable: with `init`, one that keeps running (a sidecar) and keeps what it gets.
            numa: the nodes that the topology manager settled on; None: what `topology` says.
            lenient: silently skip resources without a list, as kubelet does, which would hide a test's mistake.

        Returns:
            The plugins' responses by resource.

        Raises:
            AdmissionError: the pod is rejected, and holds nothing.
            UnknownResourceError: kubelet has no list of a resource, and `lenient` is not set.
        """
        unknown = sorted(name for name in limits if not self._admission.known(name))
        if unknown and not lenient:
            raise UnknownResourceError(
                f"pod {namespace}/{pod} asks for {', '.join(unknown)}, of which no plugin has sent a list: kubelet "
                "would admit it without any device; wait with until_allocatable, or pass lenient=True"
            )
        key = ContainerKey(namespace, pod, container)
        init_kind: Kind = "sidecar" if restartable else "init"
        hint = None if numa is None else frozenset(numa)
        await self._admission.admit(key, Container(init_kind if init else "app", dict(limits), hint))
        return {name: entry.response for name, entry in self.ledger.of(key).items()}

    async def start_container(
        self, pod: str, container: str = "main", namespace: str = "default"
    ) -> pb.ContainerAllocateResponse:
        """Do what kubelet does before each start of a container: PreStartContainer where a plugin wants it.

        A resource that the container requests but does not hold, because it was skipped, is allocated now.

        Returns:
            What the container gets from all its plugins; if two set the same thing, either may win.

        Raises:
            AdmissionError: the plugin failed or is down; the container does not start.
            LookupError: no such container was admitted.
        """
        return await self._admission.start(ContainerKey(namespace, pod, container))

    def finish_pod(self, pod: str, namespace: str = "default") -> None:
        """Let a pod's containers end: it is still there, and its devices are free at kubelet's next look.

        Old kubelets keep listing it in podresources.
        """
        self._admission.remove(namespace, pod, finished=True)

    def remove_pod(self, pod: str, namespace: str = "default") -> None:
        """Forget a pod; plugins are not told, since the API has no such call.

        Its devices are free at kubelet's next check, which is the next admission or call of podresources.
        """
        self._admission.remove(namespace, pod)

    def allocated_resources_status(
        self, pod: str, container: str = "main", namespace: str = "default"
    ) -> Mapping[str, Mapping[str, str]]:
        """Return what pod status says of a container's devices: Healthy or Unhealthy, by resource and id.

        A device that vanished from its plugin's list reads Healthy; so does one whose plugin is gone.
        """
        return self._admission.health(ContainerKey(namespace, pod, container))
