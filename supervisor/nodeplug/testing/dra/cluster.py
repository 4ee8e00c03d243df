"""The cluster around one scratch node: what a pod needs to get devices of a plugin by a claim.

    with DraCluster(node) as cluster:
        cluster.until_offered("example.com/fuse")
        cluster.claim("one", "example.com/fuse")
        edits = cluster.admit("pod", "one")
        cluster.end("pod")

Owns: the kubelet and the scheduler that are acted out for this node, a DeviceClass for each resource that is asked for,
and the order in which a pod comes and goes.
Refuses: the API server, which the node's daemon has to know before it starts: see `ScratchNode.api`; and CDI devices
that others define, such as a vendor's: they are named, and what they would do is not known here.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, Self

from nodeplug.config import DraSection
from nodeplug.contract.errors import NotReady
from nodeplug.contract.values import ResourceName
from nodeplug.dra import names
from nodeplug.dra.manifests import Class
from nodeplug.dra.names import DOMAIN
from nodeplug.testing.dra.cdi import CdiSpecs, Edits
from nodeplug.testing.dra.kubelet import DraKubelet, PrepareFailed
from nodeplug.testing.dra.pools import Candidate, seen_in
from nodeplug.testing.dra.scheduler import Scheduler
from nodeplug.testing.dra.timeouts import DraTimeouts
from nodeplug.testing.scratch_node import ScratchNode
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from nodeplug.testing.dra.resource_api import ResourceApi

PATIENCE: Final = 20.0
_PAUSE: Final = 0.1
_QUICK: Final = DraTimeouts(retry=0.1, poll=0.02, health=0.1)
_NO_API: Final = (
    'no section of this node says serve = "dra", so that nobody has acted out an API server for it; write it below '
    "[plugins.NAME] before the node is placed"
)
Row = Mapping[str, Any]


class DraCluster:
    """What is around a node.

    Args:
        node: at least one section of it says `serve = "dra"`, and it may run already.
        timeouts: of kubelet, which looks more often here.

    Attributes:
        node: the node.
        api: has slices and claims.
        scheduler: allocates claims.
        kubelet: has claims prepared; in a folder in which no other kubelet may be.

    Raises:
        NotReady: no API server is acted out for the node.
    """

    def __init__(self, node: ScratchNode, *, timeouts: DraTimeouts = _QUICK) -> None:
        if node.api is None:
            raise NotReady(_NO_API)
        self.node = node
        self.api: ResourceApi = node.api
        self.scheduler = Scheduler(self.api)
        supervisor, dra = node.configuration.supervisor, node.configuration.dra
        folder = supervisor.below_root((dra or DraSection()).cdi_dir)
        self.kubelet = DraKubelet(node.paths.plugins_registry.parent, self.api, [folder], timeouts=timeouts)
        self.kubelet.specs = _OwnSpecs([folder])

    def __enter__(self) -> Self:
        self.kubelet.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End kubelet; succeed when that was done before."""
        self.kubelet.stop()

    # --- what is offered

    def drivers(self) -> list[Row]:
        """Return what the daemon says of its drivers."""
        rows: list[Row] = self.node.status()["dra"]
        return rows

    def offered(self, resource: str) -> list[Row]:
        """Return the devices of a resource, as the scheduler sees them; none while its pool is incomplete."""
        return [one.spec for one in self._candidates(resource)]

    def _candidates(self, resource: str) -> list[Candidate]:
        value = names.resource_value(ResourceName(resource))
        found = seen_in(self.api.slices(), self.api.node).candidates
        return [one for one in found if _text(one.spec, names.RESOURCE) == value]

    def until_offered(self, resource: str, seconds: float = PATIENCE) -> list[Row]:
        """Wait until kubelet knows the driver of a resource and the scheduler its devices, and return these.

        Raises:
            NotReady: there are none in time; the message says why, as far as the daemon knows.
        """
        end = time.monotonic() + seconds
        enough = end - seconds * 3 / 4  # what is wrong for so long is not just beginning
        while not (found := self.offered(resource)) or not self._registered():
            problem = next((str(row["problem"]) for row in self.drivers() if row["problem"]), "")
            if time.monotonic() > (enough if problem else end):
                why = problem or "device_list answers none"
                raise NotReady(f"there is no device of {resource} for claims: {why}")
            time.sleep(_PAUSE)
        return found

    def _registered(self) -> bool:
        return all(row["registered"] for row in self.drivers())

    # --- pods

    def claim(
        self, name: str, resource: str, amount: Mapping[str, str] | None = None, *, pod: str = "", admin: bool = False
    ) -> None:
        """Create a claim for one device of a resource.

        Args:
            name: of the claim.
            resource: which a plugin of the node claims.
            amount: how much of a device that is shared, by capacity, such as `{"memory": "5Gi"}`; by default all of it.
            pod: whose it is: it goes with that pod.
            admin: it is for observation, and takes nothing.
        """
        known = self._class(resource)
        exactly: dict[str, Any] = {"deviceClassName": known}
        if amount:
            exactly["capacity"] = {"requests": dict(amount)}
        if admin:
            exactly["adminAccess"] = True
        self.scheduler.claim(name, {"name": "device", "exactly": exactly}, pod=pod)

    def _class(self, resource: str) -> str:
        """Return the class of a resource, which is made when it is asked for first.

        Raises:
            NotReady: no driver offers the resource.
        """
        wanted = ResourceName(resource)
        name = names.class_name(wanted)
        if self.api.get("deviceclasses", name) is None:
            self.until_offered(resource)
            driver = next(one.driver for one in self._candidates(resource))
            section = next(str(row["section"]) for row in self.drivers() if row["driver"] == driver)
            self.scheduler.add_class(name, Class(wanted, (section,)).selector)
        return name

    def admit(self, pod: str, *claims: str, seconds: float = PATIENCE) -> Edits:
        """Schedule a pod and start its container `main`, which uses all its claims; return what that gets.

        Raises:
            Pending: the scheduler cannot allocate the claims.
            PrepareFailed: they cannot be prepared in time; kubelet would try for ever.
        """
        self.scheduler.place(pod, claims)
        return self.start(pod, *claims, seconds=seconds)

    def start(self, pod: str, *claims: str, seconds: float = PATIENCE) -> Edits:
        """Start a pod that is scheduled, as `admit`."""
        end = time.monotonic() + seconds
        while True:
            try:
                return self.kubelet.admit(pod, claims)["main"]
            except PrepareFailed:
                if time.monotonic() > end:
                    raise
            time.sleep(_PAUSE)

    def end(self, pod: str) -> None:
        """End a pod, and free its claims."""
        self.kubelet.until_ended(pod)
        self.scheduler.free(pod)

    def left(self) -> list[str]:
        """Return which claims the node still has something of, with the reason as far as it is known."""
        return [
            f"claim {one['claim']}{', whose plugin has not heard of its end' if one['phase'] == 'released' else ''}"
            for row in self.drivers()
            for one in row["claims"]
        ]

    def until_released(self, seconds: float = PATIENCE) -> None:
        """Wait until nothing is left of any claim: its spec has gone, and its plugin has heard of its end.

        Raises:
            NotReady: something is left.
        """
        try:
            until(lambda: not self.left(), seconds)
        except AssertionError:
            raise NotReady(f"there is left {', '.join(self.left())}") from None


class _OwnSpecs(CdiSpecs):
    """The specs of the node's drivers; devices that others define are only named, since their specs are elsewhere."""

    def resolve(self, names: Sequence[str]) -> Edits:
        own = [name for name in names if name.partition("/")[0].endswith(f".{DOMAIN}")]
        return replace(super().resolve(own), names=tuple(names))


def _text(device: Row, attribute: str) -> str:
    found: Mapping[str, Any] = (device.get("attributes") or {}).get(attribute) or {}
    return str(found.get("string", ""))
