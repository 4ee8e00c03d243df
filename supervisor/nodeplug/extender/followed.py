"""The cluster as scheduler extenders need it: nodes, pods on their way to them, and Bindings.

Owns: two clients of the API server, one that follows and one that is asked in the time of a call; what is kept of each
object; and how the success of a Binding is known.
Refuses: decisions, and to ask again: kube-scheduler does.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import NotFound, NotReady, PluginError, TryAgain, Uncertain
from nodeplug.contract.scheduling import ClusterScheduling
from nodeplug.contract.values import (
    ExtenderFilter,
    ExtenderPreempt,
    ExtenderPrioritize,
    ExtenderRequest,
    ExtenderVictims,
)
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.followed import Followed, slim
from nodeplug.kubeapi.refusals import Unreachable
from nodeplug.kubeapi.resources import NODES, PODS, Object
from nodeplug.process import across
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
_AFTER_FAILURE: Final = 2.0
_IN_A_CALL: Final = Bounds(at_once=16, connect=1.0, request=1.5)
"""A Binding and the look at its pod together take less than the 4 s of a hook."""
_GRACE: Final = 0.4
"""Seconds that the event loop may be late."""
_PREEMPTING: Final = 2.5
"""Seconds for reading the pods of nodes; with the hook, less than kube-scheduler waits."""
_LEFT_OUT: Final = frozenset(["images", "volumesAttached", "volumesInUse", "config"])
"""Of a node's status: hundreds of names, of which no extender knows more than kube-scheduler."""
_SHORT: Final = 100
_TEXTS: Final = 50_000
_BOUND: Final = "status.phase=Pending,spec.nodeName!="
_T = TypeVar("_T")


class SlimNodes:
    """What is kept of nodes: of a text that many of them have, such as a label, there is one."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def __call__(self, found: Object) -> Object:
        """Return what is kept of a node."""
        status = {key: value for key, value in (found.get("status") or {}).items() if key not in _LEFT_OUT}
        kept: Object = self._shared({**slim(found), "status": status})
        return kept

    def _shared(self, value: Any) -> Any:
        if isinstance(value, str):
            if len(value) > _SHORT:
                return value
            if len(self._texts) >= _TEXTS:
                self._texts.clear()
            return self._texts.setdefault(value, value)
        if isinstance(value, dict):
            return {self._shared(key): self._shared(one) for key, one in value.items()}
        return [*map(self._shared, value)] if isinstance(value, list) else value


class FollowedCluster:
    """The cluster of this daemon. Event loop only, but for what plugins ask.

    Args:
        kubeconfig: names the API server; None: as `kubeapi.credentials.find` finds it.

    Attributes:
        trouble: why nothing new is known; empty while all is well.
    """

    def __init__(self, kubeconfig: Path | None) -> None:
        self.loop = asyncio.get_running_loop()
        self._kubeconfig = kubeconfig
        self._failure = "the API server has not been found yet"
        self._asked: Client | None = None
        self._nodes: Followed | None = None
        self._pods: Followed | None = None

    async def run(self) -> None:
        """Follow the cluster until cancelled."""
        while True:
            try:
                access = await aside(lambda: find(self._kubeconfig), "extender: find the API server")
                credentials = Credentials(access)
                async with Client(credentials) as follower, Client(credentials, _IN_A_CALL) as asked:
                    self._failure, self._asked = "", asked
                    await self._follow(follower)
            except PluginError as error:
                if error.message != self._failure:
                    LOG.warning("scheduler extenders know nothing new of the cluster: %s", error.message)
                self._failure = error.message
            except ExceptionGroup:
                LOG.exception("what follows the cluster for scheduler extenders failed; it begins anew")
                self._failure = "it failed, and begins anew; the daemon's log has the traceback"
            finally:
                self._asked = None
            await asyncio.sleep(_AFTER_FAILURE)

    async def _follow(self, client: Client) -> None:
        changed = asyncio.Event()
        nodes = Followed(client, NODES, lambda _: True, changed, kept=SlimNodes())
        pods = Followed(client, PODS, lambda _: True, changed, fields=_BOUND)
        if self._nodes is None:  # otherwise what was known before is better than nothing
            self._nodes, self._pods = nodes, pods
        async with asyncio.TaskGroup() as group:
            group.create_task(nodes.follow(), name="extender: follow nodes")
            group.create_task(pods.follow(), name="extender: follow pods")
            while not (nodes.known and pods.known):
                await changed.wait()
                changed.clear()
            self._nodes, self._pods = nodes, pods

    @property
    def trouble(self) -> str:
        """Why nothing new is known; empty while all is well."""
        followed = [one for one in (self._nodes, self._pods) if one is not None]
        return self._failure or next((one.trouble for one in followed if one.trouble), "")

    def status(self) -> Mapping[str, Any]:
        """Describe it."""
        counts = {
            name: len(one.objects) if one is not None and one.known else None
            for name, one in (("nodes", self._nodes), ("pods_bound", self._pods))
        }
        return {**counts, "problem": self.trouble}

    # --- any thread

    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a node; see `ClusterScheduling`."""
        return self._known(self._nodes, "nodes").get(name)

    def bound(self) -> Sequence[Mapping[str, Any]]:
        """Return the pods that are bound and wait; see `ClusterScheduling`."""
        return tuple(self._known(self._pods, "pods that are bound").values())

    def _known(self, followed: Followed | None, what: str) -> dict[str, Object]:
        if followed is None or not followed.known:
            raise TryAgain(f"the {what} are not known yet: {self.trouble or 'they are being listed'}")
        return followed.objects

    # --- in the time of a call

    async def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Ask for a pod; None if there is none."""
        try:
            return await self._client().get(PODS, name, namespace)
        except NotFound:
            return None

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod; see `ClusterScheduling`."""
        metadata = {"name": name, "namespace": namespace, "uid": uid}
        made = {"kind": "Binding", "metadata": metadata, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        try:
            await self._client().create(PODS, made, namespace, part_of=(name, "binding"))
        except Unreachable as error:
            raise NotReady(error.message) from None  # it was not even asked
        except PluginError as error:
            await self._look(made, error)

    async def _look(self, binding: Object, error: PluginError) -> None:
        """Return if a pod is bound as it should be in spite of an error; raise that error if it is not."""
        metadata, node = binding["metadata"], binding["target"]["name"]
        namespace, name = metadata["namespace"], metadata["name"]
        try:
            found = await self.pod(namespace, name) or {}
        except PluginError as second:
            raise Uncertain(
                f"nobody knows whether pod {namespace}/{name} is bound to {node}: {error.message}; and it cannot be "
                f"read: {second.message}"
            ) from error
        if (found.get("metadata") or {}).get("uid") != metadata["uid"]:
            raise error
        if (found.get("spec") or {}).get("nodeName") != node:
            raise error

    async def victims(self, named: Mapping[str, ExtenderVictims]) -> Mapping[str, ExtenderVictims]:
        """Complete victims of which kube-scheduler tells the UIDs alone; nodes that are not read in time are left out.

        Raises:
            PluginError: no node could be read.
        """
        reads = {node: asyncio.ensure_future(self._victims(node, one)) for node, one in named.items()}
        await asyncio.wait(reads.values(), timeout=_PREEMPTING)
        for one in reads.values():
            one.cancel()
        await asyncio.wait(reads.values())
        failures = [one.exception() for one in reads.values() if not one.cancelled()]
        read = {node: one.result() for node, one in reads.items() if not one.cancelled() and not one.exception()}
        if not read:
            raise next((one for one in failures if one is not None), TryAgain("the API server does not answer"))
        return read

    async def _victims(self, node: str, named: ExtenderVictims) -> ExtenderVictims:
        listed = await self._client().list(PODS, fields=f"spec.nodeName={node}")
        pods = {str(one["metadata"]["uid"]): one for one in listed}
        objects = {uid: pods[uid] for uid in named.pods if uid in pods}
        return ExtenderVictims(pods=named.pods, pdb_violations=named.pdb_violations, objects=objects)

    def _client(self) -> Client:
        if self._asked is None:
            raise NotReady(self._failure)
        return self._asked


async def completed(request: ExtenderRequest, cluster: FollowedCluster) -> ExtenderRequest:
    """Return a request of kube-scheduler as it would be with `nodeCacheCapable: false`.

    Raises:
        TryAgain: the nodes are not known yet.
        PluginError: the victims of no node could be read.
    """
    match request:
        case ExtenderFilter() | ExtenderPrioritize() if None in request.nodes.values():
            return replace(request, nodes={name: cluster.node(name) for name in request.nodes})
        case ExtenderPreempt() if any(one.pods and not one.objects for one in request.victims.values()):
            return replace(request, victims=await cluster.victims(request.victims))
        case _:
            return request


class BlockingScheduling(ClusterScheduling):
    """The cluster for the threads of plugins; `hosting.rights` says which sections may ask.

    Args:
        cluster: of all.
    """

    def __init__(self, cluster: FollowedCluster) -> None:
        self._cluster = cluster

    def node(self, name: str) -> Mapping[str, Any] | None:
        """Return a node; see `ClusterScheduling`."""
        return self._cluster.node(name)

    def bound(self) -> Sequence[Mapping[str, Any]]:
        """Return the pods that are bound and wait; see `ClusterScheduling`."""
        return self._cluster.bound()

    def pod(self, namespace: str, name: str) -> Mapping[str, Any] | None:
        """Ask for a pod; see `ClusterScheduling`."""
        return self._ask(lambda cluster: cluster.pod(namespace, name), 1)

    def bind(self, namespace: str, name: str, uid: str, node: str) -> None:
        """Bind a pod; see `ClusterScheduling`."""
        self._ask(lambda cluster: cluster.bind(namespace, name, uid, node), 2, Uncertain)

    def _ask(
        self,
        asking: Callable[[FollowedCluster], Coroutine[Any, Any, _T]],
        requests: int,
        late: Callable[[str], PluginError] = TryAgain,
    ) -> _T:
        seconds = requests * _IN_A_CALL.request + _GRACE
        return across.ask(self._cluster.loop, asking(self._cluster), seconds, late)
