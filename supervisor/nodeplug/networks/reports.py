"""The network status of pods, written behind the answer to the runtime.

Owns: one report for each pod, the latest; how often and how long it is tried, and how many pods wait.
Refuses: to keep an answer waiting, and to know what a network is. A report that is lost with the daemon is made again
by whoever made it.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from nodeplug.contract.cluster import ClusterPod
from nodeplug.contract.errors import NotFound, PluginError, TryAgain
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.refusals import Conflict
from nodeplug.kubeapi.resources import PODS, Object
from nodeplug.kubeapi.watch import Pauses
from nodeplug.networks.objects import is_the_pod, pod_of

LOG: Final = logging.getLogger(__name__)
STATUS: Final = "k8s.v1.cni.cncf.io/network-status"
PATIENCE: Final = 600.0
"""Seconds for which a report is tried."""
MOST: Final = 1024
"""Pods whose reports wait; of more the oldest is given up."""
AT_ONCE: Final = 4
_PAUSES: Final = Bounds(pause=0.5, longest_pause=30.0)


@dataclass(frozen=True, slots=True)
class _Report:
    pod: ClusterPod
    text: str
    late: float


class Reports:
    """Those that are to be written. Event loop only.

    Args:
        node: the name of this node; pods of others are left alone.
        known: what is known of a pod of this node, by its key; None if nothing is.
    """

    def __init__(self, node: str, known: Callable[[str], Object | None]) -> None:
        self.trouble = ""
        self._node, self._known = node, known
        self._waiting: dict[str, _Report] = {}
        self._changed = asyncio.Event()
        self._places = asyncio.Semaphore(AT_ONCE)

    def add(self, pod: ClusterPod, networks: Sequence[Mapping[str, Any]]) -> None:
        """Have a report written, instead of one of the same pod that still waits."""
        key = f"{pod.namespace}/{pod.name}"
        self._waiting.pop(key, None)
        while len(self._waiting) >= MOST:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            LOG.warning("the network status of pod %s is given up: %d others wait", oldest, MOST)
        text = json.dumps([dict(one) for one in networks], indent=4)
        self._waiting[key] = _Report(pod, text, asyncio.get_running_loop().time() + PATIENCE)
        self._changed.set()

    async def run(self, client: Client) -> None:
        """Write until cancelled; what is not written by then waits for another client."""
        begun: dict[str, asyncio.Task[None]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                begun = {key: task for key, task in begun.items() if not task.done()}
                for key in [key for key in self._waiting if key not in begun]:
                    begun[key] = group.create_task(self._work(client, key), name=f"network status of {key}")
                await self._changed.wait()
                self._changed.clear()

    async def _work(self, client: Client, key: str) -> None:
        """Write the latest report of a pod, also if it changes meanwhile."""
        pauses = Pauses(_PAUSES)
        while (report := self._waiting.get(key)) is not None:
            try:
                async with self._places:
                    await self._write(client, key, report)
                done, self.trouble = True, ""
            except NotFound:
                done = True  # it has ended
            except PluginError as error:  # also one that says no: rights are granted later
                done = self._missed(key, report, error)
            if done and self._waiting.get(key) is report:
                del self._waiting[key]
            if not done:
                await asyncio.sleep(pauses.next())
        self._changed.set()  # so that the task is forgotten, and one that came just now is begun

    def _missed(self, key: str, report: _Report, error: PluginError) -> bool:
        """Say what went wrong; return whether the report is given up."""
        if asyncio.get_running_loop().time() >= report.late:
            LOG.error("the network status of pod %s is given up: %s", key, error)
            return True
        if error.message != self.trouble:
            LOG.warning("cannot write the network status of pod %s: %s; it is tried again", key, error)
        self.trouble = error.message
        return False

    async def _write(self, client: Client, key: str, report: _Report) -> None:
        found = self._known(key)
        if found is None:
            found = await client.get(PODS, report.pod.name, report.pod.namespace)
            if (found.get("spec") or {}).get("nodeName") != self._node:
                LOG.warning("the network status of pod %s is not written: it is not on node %s", key, self._node)
                raise NotFound("it is on another node")
        pod = pod_of(found)
        if not is_the_pod(pod, report.pod.uid):
            raise NotFound("another pod has its name")
        if pod.annotations.get(STATUS) == report.text:
            return
        # The UID is a precondition: a later pod of the name refuses the patch.
        metadata: dict[str, Any] = {"annotations": {STATUS: report.text}, "uid": pod.uid}
        try:
            await client.patch(PODS, report.pod.name, {"metadata": metadata}, report.pod.namespace, part="status")
        except Conflict as error:
            fresh = pod_of(await client.get(PODS, report.pod.name, report.pod.namespace))
            if not is_the_pod(fresh, report.pod.uid):
                raise NotFound("another pod has its name") from None
            raise TryAgain(error.message) from None
