"""Pods of random sizes that come and go, whoever runs them.

Owns: their shapes and lives, and what became of each.
Refuses: to place them, and to run them: schedulers, and kubelets of whatever kind, do.

A place is a pod at any time: when it has ended, the next one comes. Every other place gives all its pods one name, as a
StatefulSet does. Some pods are deleted, others end by themselves. Init containers want as much as all that follow them.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from tests.real.consumers.containerd import BUSYBOX

from nodeplug.contract.errors import NotFound
from nodeplug.kubeapi.client import Client, Listed
from nodeplug.kubeapi.resources import PODS, Object
from nodeplug.kubeapi.watch import Watch

_LABELS: Final = {"churn": "yes"}
_SILENT: Final = 15.0
_STAYS: Final = "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"


@dataclass
class Churn:
    """Pods that come and go.

    Attributes:
        client: who creates and deletes them.
        resource: of which they want units.
        schedulers: whose they are, in turns.
        total: how many there shall be.
        places: how many at any time.
        sizes: units that a container may want.
        life: seconds that a pod runs at most.
        growing: init containers may want less than those that follow, which then need more of the same card.
        random: of all choices.
        ended: how many pods have come to which end: `Running` for those that ran and were deleted.
        rejected: those that a kubelet has rejected, with its words.
    """

    client: Client
    resource: str
    schedulers: Sequence[str]
    total: int
    places: int
    sizes: Sequence[int] = (1, 2, 3, 5, 8, 11)
    life: float = 3.0
    growing: bool = False
    random: Random = field(default_factory=lambda: Random(1))
    ended: Counter[str] = field(default_factory=Counter)
    rejected: dict[str, str] = field(default_factory=dict)
    _made: int = 0
    _pods: dict[str, Object] = field(default_factory=dict)
    _news: dict[str, asyncio.Event] = field(default_factory=dict)

    async def run(self) -> None:
        """Go through all of them, and leave none."""
        async with asyncio.TaskGroup() as group:
            following = group.create_task(self._follow())
            async with asyncio.TaskGroup() as places:
                for place in range(self.places):
                    places.create_task(self._live(place), name=f"place {place}")
            following.cancel()

    async def _follow(self) -> None:
        labels = ",".join(f"{key}={value}" for key, value in _LABELS.items())
        async with aclosing(Watch(self.client, PODS, labels=labels).changes()) as changes:
            async for change in changes:
                if isinstance(change, Listed):  # at the begin, and when changes were missed
                    there = {one["metadata"]["uid"]: one for one in change}
                    for uid in self._news.keys() | there.keys():
                        self._note(uid, there.get(uid, {}))
                else:
                    gone = change.how == "DELETED"
                    self._note(change.object["metadata"]["uid"], {} if gone else change.object)

    def _note(self, uid: str, found: Object) -> None:
        self._pods[uid] = found
        self._news.setdefault(uid, asyncio.Event()).set()

    async def _live(self, place: int) -> None:
        while self._made < self.total:
            self._made += 1
            name = f"web-{place}" if place % 2 else f"job-{self._made}"
            seconds, alone = self.random.uniform(0, self.life), self.random.random() < 0.5
            pod = self._pod(name, seconds if alone else None)
            made = await self.client.create(PODS, pod, "default")
            uid = made["metadata"]["uid"]
            self._pods.setdefault(uid, made)
            phase = await self._until(uid, "Running", "Succeeded", "Failed")
            if phase == "Failed":
                self.rejected[uid] = f"{name}: {self._pods[uid]['status'].get('message')}"
            elif alone:
                phase = await self._until(uid, "Succeeded", "Failed")
            else:
                await asyncio.sleep(seconds)
            with suppress(NotFound):
                await self.client.delete(PODS, name, "default", uid=uid)
            await self._until(uid, "")
            self.ended[phase] += 1
            del self._pods[uid], self._news[uid]

    async def _until(self, uid: str, *phases: str) -> str:
        """Wait until a pod is in one of these phases, and return it; the empty one is that of a pod that is gone."""
        news = self._news.setdefault(uid, asyncio.Event())
        while (phase := self._phase(uid)) not in phases:
            try:
                async with asyncio.timeout(_SILENT):
                    await news.wait()
            except TimeoutError:
                await self._look(uid)
            news.clear()
        return phase

    async def _look(self, uid: str) -> None:
        """Look at a pod of which nothing was heard for long."""
        known = self._pods.get(uid)
        if not known:
            return
        try:
            found = await self.client.get(PODS, known["metadata"]["name"], "default")
        except NotFound:
            found = {}
        self._note(uid, found if found and found["metadata"]["uid"] == uid else {})

    def _phase(self, uid: str) -> str:
        found = self._pods.get(uid, {"status": {"phase": "unknown"}})
        return str(found["status"]["phase"]) if found else ""

    @property
    def waiting(self) -> dict[str, str]:
        """What is known of the pods that are there: why no node has them yet, or where they are."""
        told = {}
        for one in filter(None, self._pods.values()):
            about, node, phase = one["metadata"], one["spec"].get("nodeName"), one["status"].get("phase")
            conditions = one["status"].get("conditions") or []
            why = " ".join(str(it.get("message")) for it in conditions)
            where = (
                f"{phase} on {node}, deleted {about.get('deletionTimestamp')}, version {about.get('resourceVersion')}"
            )
            told[f"{about['name']} {about['uid']}"] = where if node else why
        return told

    # --- their shapes

    def _pod(self, name: str, seconds: float | None) -> dict[str, Any]:
        """Make a pod; with seconds it ends by itself after so many."""
        stays = ["/bin/sh", "-c", _STAYS] if seconds is None else ["/bin/sleep", f"{seconds:.2f}"]
        sizes = [self.random.choice(self.sizes) for _ in range(self.random.choice([1, 1, 2]))]
        app = [self._container(f"app-{number}", stays, units) for number, units in enumerate(sizes)]
        init = []
        whole = self.random.choice(self.sizes) if self.growing else sum(sizes)
        if self.random.random() < 0.3 and whole <= max(self.sizes):
            init.append(self._container("init", ["/bin/sh", "-c", ":"], whole))
        if self.random.random() < 0.1:
            sidecar = self._container("sidecar", ["/bin/sh", "-c", _STAYS], min(self.sizes))
            init = [{**sidecar, "restartPolicy": "Always"}, *init]
        return {
            "metadata": {"name": name, "labels": _LABELS},
            "spec": {
                "initContainers": init,
                "containers": app,
                "restartPolicy": "Always" if seconds is None else "Never",
                "schedulerName": self.schedulers[self._made % len(self.schedulers)],
                "terminationGracePeriodSeconds": 1,
                "enableServiceLinks": False,
                "dnsPolicy": "Default",
                "tolerations": [{"operator": "Exists"}],
            },
        }

    def _container(self, name: str, command: Sequence[str], units: int) -> dict[str, Any]:
        limits = {self.resource: str(units), "cpu": "10m", "memory": "16Mi"}
        return {
            "name": name,
            "image": BUSYBOX,
            "imagePullPolicy": "IfNotPresent",
            "command": list(command),
            "resources": {"limits": limits},
        }
