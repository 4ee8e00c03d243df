"""kubelet's DRA manager acted out, for tests of drivers: real sockets, real gRPC, no node and no containers.

    with DraKubelet(tmp_path / "kubelet", api, [tmp_path / "cdi"]) as kubelet:
        ...                                   # a driver registers in kubelet.plugins_registry
        kubelet.until_registered("gpu.nodeplug.io")
        edits = kubelet.admit("pod-1", ["claim-1"])["main"]

Owns: pods with their claims, when a driver is called for them, and what becomes of slices when kubelet starts or a
driver is gone. Several threads may admit and end pods at once, as kubelet does.
Refuses: which devices a claim has (`Scheduler`), and device plugins.

Source: kubernetes 1.36, pkg/kubelet/cm/dra/manager.go, as measured with 1.36.2.
"""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, TypeVar

from nodeplug.testing.acted_api.store import Where
from nodeplug.testing.dra import calls
from nodeplug.testing.dra.calls import DriverFailure
from nodeplug.testing.dra.cdi import CdiSpecs, Edits
from nodeplug.testing.dra.gates import results_of
from nodeplug.testing.dra.health import Health
from nodeplug.testing.dra.instances import Instance, Instances
from nodeplug.testing.dra.podresources import Held, PodResources
from nodeplug.testing.dra.prepared import ClaimInfo, Place, Prepared
from nodeplug.testing.dra.resource_api import VERSION, ResourceApi
from nodeplug.testing.dra.scheduler import uid_of
from nodeplug.testing.dra.timeouts import KUBELETS, DraTimeouts
from nodeplug.testing.waiting import until

_PAUSE: Final = 0.05
_Value = TypeVar("_Value")
Uses = Mapping[str, Sequence[str]]
"""By container: the claims that it uses, or `claim/request` for one request of a claim."""


class PrepareFailed(Exception):
    """A pod cannot start yet: the event FailedPrepareDynamicResources. Kubelet tries again; the pod is not rejected."""


class UnprepareFailed(Exception):
    """A pod cannot end yet: it stays Terminating, and its claims stay reserved. Kubelet tries again."""


@dataclass(frozen=True)
class _Pod:
    namespace: str
    name: str
    claims: tuple[Place, ...]
    uses: Uses

    @property
    def uid(self) -> str:
        return uid_of(self.name, self.namespace)


class DraKubelet:
    """kubelet.

    Args:
        root: takes the place of /var/lib/kubelet; keep it short, socket paths have 107 bytes.
        api: where claims and slices are.
        cdi: the folders of CDI specs, as the runtime reads them.
        timeouts: kubelet's constants.

    Attributes:
        plugins_registry: where drivers put their sockets.
        instances: the drivers that are registered, and why others are not.
        prepared: what kubelet remembers of claims.
        health: what drivers tell of devices.
        specs: what the runtime knows of CDI devices.
        wiped: drivers whose slices were deleted because they were gone, in order.
        events: of pods that could not start, as `pod: message`.
    """

    def __init__(self, root: Path, api: ResourceApi, cdi: Iterable[Path], *, timeouts: DraTimeouts = KUBELETS) -> None:
        self.root, self.api, self.timeouts = root, api, timeouts
        self.plugins_registry = root / "plugins_registry"
        self.plugins_registry.mkdir(parents=True, exist_ok=True)
        self.specs = CdiSpecs(cdi)
        self.prepared = Prepared(root)
        self.health = Health(timeouts)
        self.instances = Instances(self.plugins_registry, self._wipe, self.health.follow, timeouts)
        self.wiped: list[str] = []
        self.events: list[str] = []
        self._pods: dict[tuple[str, str], _Pod] = {}
        self._lock = threading.RLock()
        self._podresources: PodResources | None = None

    # --- life -------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start: the slices of the node are deleted, drivers are looked for, and no claim counts as prepared."""
        self.prepared.load()
        self.api.wipe()
        self._podresources = PodResources(self.root / "pod-resources" / "kubelet.sock", self._held)
        self.instances.start()

    def stop(self) -> None:
        """End; pods and their containers live on. Succeed when that was done before."""
        if self._podresources is not None:
            self._podresources.stop()
            self._podresources = None
        self.instances.stop()
        self.health.stop()

    def restart(self) -> None:
        """Stop and start."""
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _wipe(self, driver: str) -> None:
        self.wiped.append(driver)
        self.api.wipe(driver)

    def until_registered(self, driver: str, count: int = 1) -> None:
        """Wait until so many instances of a driver are registered."""
        until(lambda: len(self.instances.of(driver)) == count, found=lambda: "; ".join(self.instances.refusals[-3:]))

    # --- pods -------------------------------------------------------------------------------------------------------

    @property
    def pods(self) -> list[str]:
        """The names of the pods that have not ended."""
        return [pod.name for pod in list(self._pods.values())]

    def admit(
        self, pod: str, claims: Sequence[str], uses: Uses | None = None, *, namespace: str = "default"
    ) -> Mapping[str, Edits]:
        """Start a pod: have its claims prepared, then create its containers. Once; kubelet would try again for ever.

        Args:
            pod: its name.
            claims: the names of its claims, which are allocated and reserved for it.
            uses: what its containers use; by default there is one, `main`, that uses all claims.
            namespace: of both.

        Returns:
            What each container gets.

        Raises:
            PrepareFailed: a driver is not registered, fails, or does not answer; or a claim is not the pod's.
            UnresolvableDevices: a container cannot be created.
        """
        places = tuple((namespace, name) for name in claims)
        found = self._pods.setdefault((namespace, pod), _Pod(namespace, pod, places, uses or {"main": tuple(claims)}))
        return self._sandboxed(found)

    def new_sandbox(self, pod: str, namespace: str = "default") -> Mapping[str, Edits]:
        """Create the sandbox of a pod anew: its claims are prepared again unless this kubelet has done so.

        Raises:
            PrepareFailed, UnresolvableDevices: as `admit`.
        """
        return self._sandboxed(self._pods[namespace, pod])

    def start_container(self, pod: str, container: str = "main", namespace: str = "default") -> Edits:
        """Create a container anew, without asking any driver, and return what it gets.

        Raises:
            UnresolvableDevices: it cannot be created (CreateContainerError).
        """
        return self.specs.resolve(self.cdi_names(pod, container, namespace))

    def end(self, pod: str, namespace: str = "default") -> None:
        """End a pod: claims that no other pod uses are unprepared. Once; kubelet would try again for ever.

        Raises:
            UnprepareFailed: the pod stays.
        """
        found = self._pods[namespace, pod]
        self._unprepare(found.uid, self.prepared.of(found.claims))
        del self._pods[namespace, pod]

    def until_admitted(self, pod: str, claims: Sequence[str], uses: Uses | None = None) -> Mapping[str, Edits]:
        """Admit a pod, again and again until it starts."""
        return _until(lambda: self.admit(pod, claims, uses), PrepareFailed)

    def until_ended(self, pod: str) -> None:
        """End a pod, again and again until it has ended."""
        _until(lambda: self.end(pod), UnprepareFailed)

    def forget(self, pod: str, namespace: str = "default") -> None:
        """Forget a pod without unpreparing anything: its object went while kubelet was away. See `reconcile`."""
        del self._pods[namespace, pod]

    def reconcile(self) -> None:
        """Unprepare what only pods used that are no more, as kubelet does every minute.

        Raises:
            UnprepareFailed: some of it is left.
        """
        living = {pod.uid for pod in self._pods.values()}
        for claim in list(self.prepared.claims.values()):
            for uid in [uid for uid in claim.pods if uid not in living]:
                self._unprepare(uid, [claim])

    def cdi_names(self, pod: str, container: str = "main", namespace: str = "default") -> list[str]:
        """Return the CDI devices that the runtime is asked for, as often as kubelet has them."""
        found: list[str] = []
        for used in self._pods[namespace, pod].uses[container]:
            name, _, request = used.partition("/")
            claim = self.prepared.claims.get((namespace, name))
            found += claim.cdi_names(request) if claim is not None else ()
        return found

    def resource_health(self, pod: str, container: str = "main", namespace: str = "default") -> list[dict[str, Any]]:
        """Return the `allocatedResourcesStatus` of a container: its resources, named by their first CDI device."""
        found = []
        for used in self._pods[namespace, pod].uses[container]:
            name, _, request = used.partition("/")
            claim = self.prepared.claims[namespace, name]
            resources = []
            for driver, states in claim.drivers.items():
                for state in states:
                    if not request or not state.requests or request in state.requests:
                        told = self.health.of((driver, state.pool, state.device))
                        first = next(iter(state.cdi), "")
                        resources.append({"resourceID": first, "health": told.health, "message": told.message})
            found.append({"name": f"claim:{used}", "resources": resources})
        return found

    # --- claims -----------------------------------------------------------------------------------------------------

    def _sandboxed(self, pod: _Pod) -> Mapping[str, Edits]:
        try:
            self._prepare(pod)
        except (PrepareFailed, DriverFailure) as error:
            self.events.append(f"{pod.name}: {error}")
            raise PrepareFailed(f"FailedPrepareDynamicResources: {error}") from None
        return {
            container: self.specs.resolve(self.cdi_names(pod.name, container, pod.namespace)) for container in pod.uses
        }

    def _prepare(self, pod: _Pod) -> None:
        """Before CNI and before images: that is where kubelet does it."""
        allocated = [self._allocated(place, pod) for place in pod.claims]
        todo: dict[str, list[ClaimInfo]] = {}
        with self._lock:
            instances = self._instances(allocated)
            for claim in allocated:
                info = self._known(claim)
                if pod.uid not in info.pods:
                    info.pods.append(pod.uid)
                if not info.prepared:
                    for driver in info.drivers:
                        todo.setdefault(driver, []).append(info)
            self.prepared.save()  # before any call, so that a later kubelet unprepares it
        for driver, claims in todo.items():
            calls.prepare(instances[driver], claims, self.timeouts.call)
        with self._lock:
            for claims in todo.values():
                for info in claims:
                    info.prepared = True
            self.prepared.save()

    def _allocated(self, place: Place, pod: _Pod) -> Mapping[str, Any]:
        """Read a claim from the API server, and see whether it is the pod's."""
        where = Where(VERSION, "resourceclaims", *place)
        if self.api.fault not in {"", "slow", "conflict"} and self.api.affects("GET", where):
            raise PrepareFailed(f"failed to fetch ResourceClaim {place[1]} referenced by pod {pod.name}")
        claim = self.api.store.get(where)
        if claim is None:
            raise PrepareFailed(f"failed to fetch ResourceClaim {place[1]} referenced by pod {pod.name}: not found")
        if not any(user["uid"] == pod.uid for user in (claim.get("status") or {}).get("reservedFor") or ()):
            raise PrepareFailed(f"pod {pod.name} ({pod.uid}) is not allowed to use resource claim {place[1]}")
        return claim

    def _instances(self, claims: Sequence[Mapping[str, Any]]) -> dict[str, Instance]:
        """Return whom to call, by driver; a pod whose driver is unknown leaves no trace in kubelet."""
        found = {}
        for driver in {str(result["driver"]) for claim in claims for result in results_of(claim)}:
            instance = self.instances.chosen(driver)
            if instance is None:
                raise PrepareFailed(f"DRA driver {driver} is not registered")
            found[driver] = instance
        return found

    def _known(self, claim: Mapping[str, Any]) -> ClaimInfo:
        metadata = claim["metadata"]
        place = (metadata["namespace"], metadata["name"])
        info = self.prepared.claims.get(place)
        if info is not None and info.uid != metadata["uid"]:
            raise PrepareFailed(
                f"old ResourceClaim with same name {info.name} and different UID {info.uid} still exists "
                "(previous pod still terminating?!)"
            )
        drivers: dict[str, Any] = {str(result["driver"]): [] for result in results_of(claim)}
        return info or self.prepared.claims.setdefault(place, ClaimInfo(*place, metadata["uid"], [], drivers))

    def _unprepare(self, uid: str, claims: Sequence[ClaimInfo]) -> None:
        with self._lock:
            mine = [claim for claim in claims if uid in claim.pods]
            last = [claim for claim in mine if claim.pods == [uid]]
        for driver in sorted({driver for claim in last for driver in claim.drivers}):
            instance = self.instances.chosen(driver)
            if instance is None:
                raise UnprepareFailed(f"DRA driver {driver} is not registered")
            try:
                calls.unprepare(instance, [claim for claim in last if driver in claim.drivers], self.timeouts.call)
            except DriverFailure as error:
                raise UnprepareFailed(str(error)) from None
        with self._lock:
            for claim in mine:
                claim.pods.remove(uid)
                if not claim.pods:
                    self.prepared.claims.pop((claim.namespace, claim.name), None)
            self.prepared.save()

    def _held(self) -> Held:
        return {
            place: {
                container: [
                    self.prepared.claims[pod.namespace, name]
                    for name in dict.fromkeys(used.partition("/")[0] for used in claims)
                    if (pod.namespace, name) in self.prepared.claims
                ]
                for container, claims in pod.uses.items()
            }
            for place, pod in list(self._pods.items())
        }


def _until(step: Callable[[], _Value], failure: type[Exception]) -> _Value:
    """Do something until it succeeds, and raise its failure at last."""
    end = time.monotonic() + 60
    while True:
        try:
            return step()
        except failure:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE)
