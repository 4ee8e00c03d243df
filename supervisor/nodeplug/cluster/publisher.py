"""What this node says to the cluster, as long as the daemon runs.

Owns: when plugins are asked and when something is written: a second after news, at each turn otherwise, and after ever
longer pauses while the API server is away; the budgets of requests; and what status shows.
Refuses: to be needed: nothing waits for it, and without an API server everything else works as before.

Three things go on side by side, each within a budget of its own: the Node and ConfigMaps, annotations of pods, events.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final

from nodeplug.cluster.conditions import DOMAIN, NotReadyConditions
from nodeplug.cluster.desired import Desired, joined
from nodeplug.cluster.events import Events
from nodeplug.cluster.names import label_value
from nodeplug.cluster.node_object import NodeObject
from nodeplug.cluster.other_objects import ConfigMaps, PodAnnotations
from nodeplug.cluster.reports import ClusterReports
from nodeplug.cluster.requests import Budget, Count, Requests
from nodeplug.config import ClusterSection
from nodeplug.contract.errors import PluginError
from nodeplug.hosting.call import Call
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.refusals import TooManyRequests
from nodeplug.kubeapi.watch import Pauses
from nodeplug.process.aside import aside
from nodeplug.release import own_version

LOG: Final = logging.getLogger(__name__)
TURN: Final = 10.0
"""Seconds after which plugins are asked again without news."""
DEBOUNCE: Final = 1.0
"""Seconds after news in which more of it is waited for."""
FIRST_PATIENCE: Final = 30.0
"""Seconds that plugins get to start before the first report: what a former daemon wrote of them would be removed."""
BOUNDS: Final = Bounds(at_once=3, request=20.0, longest_pause=60.0)
BUDGETS: Final[Mapping[str, tuple[int, float]]] = {"node": (8, 5.0), "pods": (20, 2.0), "events": (10, 10.0)}
"""Requests at once, and seconds for each further one: 0.8 a second for good, of which pods have 0.5."""


@dataclass(slots=True)
class Publisher:
    """Publishes. Event loop only.

    Attributes:
        registry: has the plugins.
        runner: calls them.
        node: its name in the cluster.
        section: of the configuration.
        reasons: why parts of the daemon are not ready.
        trouble: why nothing new is published now, by what.
    """

    registry: Registry
    runner: Runner
    node: str
    section: ClusterSection
    reasons: Callable[[], Mapping[str, str]]
    trouble: dict[str, str] = field(default_factory=dict)
    events: Events = field(init=False)
    _object: NodeObject = field(init=False)
    _pods: PodAnnotations = field(init=False)
    _maps: ConfigMaps = field(init=False)
    _reports: ClusterReports = field(init=False)
    _conditions: NotReadyConditions = field(default_factory=NotReadyConditions)
    _count: Count = field(default_factory=Count)
    _desired: Desired = field(default_factory=Desired)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _due_pods: asyncio.Event = field(default_factory=asyncio.Event)
    _budgets: dict[str, Budget] = field(init=False)

    def __post_init__(self) -> None:
        self.events = Events(self.node)
        self._object = NodeObject(self.node, self.section.resync)
        self._pods, self._maps = PodAnnotations(self.node), ConfigMaps(self.node)
        self._reports = ClusterReports(self.registry, self.runner)
        self._budgets = {name: Budget(*one) for name, one in BUDGETS.items()}

    async def run(self) -> None:
        """Publish until cancelled."""
        work: dict[str, Callable[[Client], Awaitable[None]]] = {
            "node": self._publish,
            "pods": self._annotate,
            "events": lambda client: self.events.run(self._requests("events", client), partial(self._well, "events")),
        }
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look(), name="ask for cluster reports")
            for name, one in work.items():
                group.create_task(self._always(name, one), name=f"publish {name}")

    async def _always(self, name: str, work: Callable[[Client], Awaitable[None]]) -> None:
        """Do some of the work for ever: again after each failure, ever later."""
        pauses = Pauses(BOUNDS)
        while True:
            least = 0.0
            begun = time.monotonic()
            try:
                access = await aside(lambda: find(self.section.kubeconfig), "cluster: find the API server")
                async with Client(Credentials(access), BOUNDS) as client:
                    await work(client)
            except PluginError as error:
                self._failed(name, error.message)
                least = error.retry_after if isinstance(error, TooManyRequests) else 0.0
            except Exception:
                LOG.exception("cluster: publishing %s failed; it begins anew", name)
                self.trouble[name] = "it failed, and begins anew; the daemon's log has the traceback"
            if time.monotonic() - begun > BOUNDS.longest_pause:
                pauses.over()
            await asyncio.sleep(max(pauses.next(), least))

    def _failed(self, name: str, why: str) -> None:
        if self.trouble.get(name) != why:
            LOG.warning("cluster: %s cannot be published: %s; it is tried again", name, why)
        self.trouble[name] = why

    def _well(self, name: str) -> None:
        if self.trouble.pop(name, ""):
            LOG.info("cluster: %s are published again", name)

    def _requests(self, name: str, client: Client) -> Requests:
        return Requests(client, self._budgets[name], self._count)

    async def _publish(self, client: Client) -> None:
        """Bring the Node and the ConfigMaps in line with what is desired, after each look."""
        requests = self._requests("node", client)
        while True:
            await self._changed.wait()
            await asyncio.sleep(requests.budget.pause())  # what is written then is the latest, however long that takes
            self._changed.clear()
            await self._object.bring(self._desired, requests)
            await self._maps.bring(self._desired.config_maps, requests)
            self._well("node")

    async def _annotate(self, client: Client) -> None:
        """Write the annotations of pods that are due, after each look."""
        requests = self._requests("pods", client)
        while True:
            await self._due_pods.wait()
            self._due_pods.clear()
            for one in self._pods.due(self._desired.pods if "pods" in self.section.publish else ()):
                await self._pods.write(one, requests)
            self._well("pods")

    # --- what is told of it

    def finished(self, call: Call, error: PluginError | None) -> None:
        """Take in the end of a caller's request."""
        if error is not None and "events" in self.section.publish:
            self.events.finished(call, error)

    def status(self) -> Mapping[str, Any]:
        """Say what was published and when, and what is in the way."""
        node, events = self._object, self.events
        troubles = {**self.trouble, **{f"{one[0]}/{one[1]}": why for one, why in self._maps.troubles.items()}}
        if events.trouble:
            troubles["events"] = events.trouble
        return {
            "labels": dict(self._desired.labels) if node.at else {},
            "annotations": {key: len(value) for key, value in self._desired.annotations.items()} if node.at else {},
            "conditions": sorted(self._desired.conditions) if node.at else [],
            "written_at": node.at,
            "left_to_others": dict(node.left),
            "pods": len(self._pods.written),
            "config_maps": ["/".join(place) for place, data in sorted(self._maps.written.items()) if data],
            "events": {"sent": events.sent, "waiting": events.waiting, "lost": events.lost},
            "requests": self._count.requests,
            "refused": self._count.refused,
            "waiting": self._count.waiting + events.waiting,
            "problems": [{"about": about, "problem": why} for about, why in sorted(troubles.items())],
            "left_out": list(self._desired.faults),
        }

    # --- what is to be said

    async def _look(self) -> None:
        """Ask plugins, for ever, whatever becomes of the answers."""
        with suppress(TimeoutError):
            async with asyncio.timeout(FIRST_PATIENCE):
                await self._reports.collect()
                while not self._reports.settled:
                    await asyncio.sleep(DEBOUNCE)
                    await self._reports.collect()
        news = self.registry.cluster_news
        while True:
            news.clear()
            try:
                self._take(await self._now())
            except Exception:  # nothing that goes wrong here may end the daemon
                LOG.exception("cluster: what is to be published cannot be told; the last of it stays")
            with suppress(TimeoutError):
                async with asyncio.timeout(TURN):
                    await news.wait()
            # What a plugin reports is written at once: it may go by what it has told the cluster.
            await asyncio.sleep(max(DEBOUNCE, self._budgets["node"].pause()))

    def _take(self, desired: Desired) -> None:
        if fresh := set(desired.faults) - set(self._desired.faults):
            LOG.warning("not published: %s", "; ".join(sorted(fresh)))
        self._desired = desired
        if "events" in self.section.publish:
            self.events.warn(desired.pods)
        self._changed.set()
        self._due_pods.set()

    async def _now(self) -> Desired:
        reports = await self._reports.collect()
        conditions = self._conditions.now(self.reasons(), time.monotonic())
        everything = joined(reports, dict(self._own_labels()), conditions, self.node)
        wanted = self.section.publish
        return replace(
            everything,
            labels=everything.labels if "labels" in wanted else {},
            annotations=everything.annotations if "annotations" in wanted else {},
            conditions=everything.conditions if "conditions" in wanted else {},
            config_maps=everything.config_maps if "config-maps" in wanted else {},
        )

    def _own_labels(self) -> Iterator[tuple[str, str]]:
        yield f"{DOMAIN}/version", label_value(own_version())
        for name, slot in self.registry.slots.items():
            if slot.state != "refused":
                yield f"{DOMAIN}/plugin-{label_value(name)[:55]}", "true"
