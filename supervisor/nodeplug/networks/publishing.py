"""Objects `Network` become files of this node, and each is told how it went.

Owns: looking at all of them whenever something has changed; the entry of this node in the status of each.
Refuses: what an object means (`objects`), and the entries of other nodes: a merge patch of one key touches no other.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.resources import NETWORKS, Object
from nodeplug.kubeapi.watch import Pauses
from nodeplug.networks import objects
from nodeplug.networks.conflists import Conflists, installed, taken_names
from nodeplug.networks.objects import Verdict
from nodeplug.process.lane import Lane

LOG: Final = logging.getLogger(__name__)
_TICK: Final = 30.0
"""Seconds after which all is looked at again: executables come and go without a word."""
_TOLD_FOR: Final = 4.0
"""Times as long as looking took are statuses told at a stretch: a network that is made meanwhile waits for its file."""


@dataclass(slots=True)
class Publishing:
    """The networks of this node. Event loop only.

    Attributes:
        client: who asks.
        node: its name in the cluster.
        networks: all objects.
        nodes: this node's own object, for its labels.
        conflists: the files.
        claims: what this daemon serves.
        folders: of the runtime's configurations, and of CNI executables.
        used: the networks that have attachments; None if that is not known.
        changed: is set when there is something to look at.
        paths: of the node that an object may name.
        problems: what cannot be done at present, by network.
    """

    client: Client
    node: str
    networks: Followed
    nodes: Followed
    conflists: Conflists
    claims: Callable[[], Collection[str]]
    folders: tuple[Path, Path]
    used: Callable[[], Collection[str] | None]
    changed: asyncio.Event
    paths: Collection[str]
    problems: dict[str, str] = field(default_factory=dict)
    _untold: dict[str, str] = field(default_factory=dict)
    _disk: Lane = field(default_factory=lambda: Lane("the disk with the networks of the cluster", 10.0))

    async def run(self) -> None:
        """Publish until cancelled."""
        pauses = Pauses(self.client.bounds)
        while True:
            self.changed.clear()
            pause = _TICK
            if self.networks.known and self.nodes.known:
                if await self._look():
                    pauses.over()
                else:
                    pause = pauses.next()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self.changed.wait()

    async def _look(self) -> bool:
        """Bring files and statuses up to date; return whether nothing failed. What is left changes soon."""
        begun = time.monotonic()
        labels = self._labels()
        mine = {name: one for name, one in self.networks.objects.items() if objects.is_for(one, labels)}
        claims, used = frozenset(self.claims()), self.used()
        try:
            verdicts = await self._disk.run(lambda: self._settle(mine, claims, used))
        except PluginError as error:
            verdicts = {name: Verdict("DiskFailure", error.message) for name in mine}
        until = time.monotonic() + _TOLD_FOR * (time.monotonic() - begun)
        await self._tell_all(verdicts, until)
        problems = self._untold | {name: one.message for name, one in verdicts.items() if one.reason != "Ready"}
        for name in problems.keys() - self.problems.keys():
            LOG.warning("network %s: %s", name, problems[name])
        self.problems = problems
        return not problems

    async def _tell_all(self, verdicts: Mapping[str, Verdict], until: float) -> None:
        """Tell each network what has become of it here, until then at least; what could not be told is noted.

        One that it did not come to keeps its problem: nobody has looked whether that is over.
        """
        present = tuple(self.networks.objects.items())  # others come and go while one is told of
        self._untold = {name: self._untold[name] for name, _ in present if name in self._untold}
        for name, network in present:
            try:
                await self._tell(network, verdicts.get(name))
                self._untold.pop(name, None)
            except PluginError as error:
                self._untold[name] = error.message
            if self.changed.is_set() and time.monotonic() > until:
                break

    def _labels(self) -> Mapping[str, str]:
        own = self.nodes.objects.get(self.node)
        return {} if own is None else own["metadata"].get("labels") or {}

    def _settle(
        self, mine: Mapping[str, Object], claims: Collection[str], used: Collection[str] | None
    ) -> dict[str, Verdict]:
        """Judge the objects and write the files; runs beside the loop."""
        taken, present = taken_names(self.folders[0]), installed(self.folders[1])
        verdicts = {}
        for name, network in mine.items():
            verdict = objects.judge(network, taken, claims, present, self.paths)
            if verdict.conflist is not None:
                try:
                    self.conflists.write(name, verdict.conflist)
                except PluginError as error:
                    verdict = Verdict("DiskFailure", error.message)
            verdicts[name] = verdict
        # An invalid object keeps its last good configuration. One with a name that is taken, or a path that is not
        # allowed, does not.
        stay = {name for name, one in verdicts.items() if one.reason not in {"NameTaken", "PathNotAllowed"}}
        left = self.conflists.keep(stay, used)
        in_use = "attachments on this node still use it; no new ones are made, and it goes with the last of them"
        return {**{name: Verdict("InUse", in_use) for name in left if name not in verdicts}, **verdicts}

    async def _tell(self, network: Object, verdict: Verdict | None) -> None:
        metadata = network["metadata"]
        status = network.get("status")
        nodes = status.get("nodes") if isinstance(status, dict) else None
        told = nodes.get(self.node) if isinstance(nodes, dict) else None
        entry: Any = None if verdict is None else verdict.entry(int(metadata.get("generation", 0)))
        if entry == told:
            return
        patch = {"status": {"nodes": {self.node: entry}}}
        with suppress(NotFound):  # it has gone meanwhile
            await self.client.patch(NETWORKS, str(metadata["name"]), patch, part="status")
