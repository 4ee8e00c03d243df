"""The ResourceSlices of this node in the API server: that they say what they should, and nothing is asked for it.

Owns: writing what has changed, having them back when others delete them, as kubelet does at each start, and refusing a
cluster that would sell a whole device for a part.
Refuses: what is in them (`slices`), what has to be written (`stored`), and any request but the watch while nothing
changes.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import AlreadyExists, NotFound, NotSupported, PluginError
from nodeplug.dra.names import DOMAIN
from nodeplug.dra.pools import without_overlapping, without_unusable
from nodeplug.dra.slices import Effect, left_out, slices_of
from nodeplug.dra.stored import Changes, changes, difference
from nodeplug.dra.values import Pool
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.followed import Followed
from nodeplug.kubeapi.refusals import Conflict
from nodeplug.kubeapi.resources import NODES, RESOURCE_SLICES, Object, key_of
from nodeplug.kubeapi.watch import Pauses

LOG: Final = logging.getLogger(__name__)
_SETTLE: Final = 0.05
"""Seconds that changes get to come together."""
_BEHIND: Final = 0.1
"""Seconds that the watch gets to tell of a change that was met before; twice as many after each try."""
_DOUBLED: Final = 10
_UNSHARED: Final = 60.0
"""Seconds between two tries in a cluster that cannot share: somebody may change that."""
_FASTER: Final = (Conflict, AlreadyExists)
"""Refusals that say that somebody was faster, or the watch is behind."""
_TRIAL: Final = "trial-"
_TRIED: Final = ("allowMultipleAllocations", "consumesCounters")
"""Fields of a device without which it would be given away twice."""
Wanted = Mapping[str, Mapping[str, Pool | None] | None]
"""What slices are to say, by driver and pool: None for what is to stay as it is, since it is not known yet."""


class _Uncounted(NotSupported):
    """The cluster does not count what devices that overlap take of one another."""


@dataclass(slots=True)
class Publication:
    """The slices of all drivers of this node. Event loop only.

    Attributes:
        node: its name.
        taint: what an unhealthy device means for pods.
        wanted: returns what slices are to say.
        news: is set when that may have changed.
        trouble: why nothing can be written at present; empty if it can.
    """

    node: str
    taint: Effect
    wanted: Callable[[], Wanted]
    news: asyncio.Event = field(default_factory=asyncio.Event)
    trouble: str = ""
    _refused: dict[str, str] = field(default_factory=dict)
    _not_before: dict[str, float] = field(default_factory=dict)
    _troubles: dict[str, str] = field(default_factory=dict)
    _checked: set[tuple[str, str]] = field(default_factory=set)
    _answers: dict[str, tuple[str, str]] = field(default_factory=dict)
    _taints: bool = True
    _uncounted: dict[str, tuple[str, float]] = field(default_factory=dict)
    _uid: str = ""
    _warned: set[str] = field(default_factory=set)
    _followed: Followed | None = None

    def trouble_of(self, driver: str) -> str:
        """Return why the slices of a driver are not what they should be; empty if they are."""
        uncounted, _ = self._uncounted.get(driver, ("", 0.0))
        own = self._refused.get(driver) or uncounted or self._troubles.get(driver)
        return own or self.trouble or (self._followed.trouble if self._followed else "")

    async def run(self, client: Client) -> None:
        """Publish until cancelled."""
        self._checked.clear()
        self._answers.clear()
        self._taints = True
        self._uncounted.clear()
        followed = Followed(client, RESOURCE_SLICES, _is_ours, self.news, fields=f"spec.nodeName={self.node}")
        self._followed, self.trouble = followed, ""
        async with asyncio.TaskGroup() as group:
            group.create_task(followed.follow(), name="follow slices")
            group.create_task(self._write(client, followed), name="write slices")

    async def _write(self, client: Client, followed: Followed) -> None:
        pauses, behind = Pauses(client.bounds), 0
        while True:
            wait = _UNSHARED if self._refused or self._uncounted else None
            with suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self.news.wait()
            self.news.clear()
            await asyncio.sleep(_SETTLE)
            if not followed.known:  # there is news when it is
                continue
            try:
                await self._bring(client, followed)
            except _FASTER:
                behind += 1
                await asyncio.sleep(min(_BEHIND * 2 ** min(behind, _DOUBLED), client.bounds.longest_pause))
                self.news.set()
            except PluginError as error:
                self._failed(error.message)
                await asyncio.sleep(pauses.next())
                self.news.set()
            else:
                pauses.over()
                behind, self.trouble = 0, ""

    def _failed(self, why: str) -> None:
        if why != self.trouble:
            LOG.warning("DRA: slices cannot be written: %s", why)
        self.trouble = why

    async def _bring(self, client: Client, followed: Followed) -> None:
        """Bring what is stored in line with what is wanted, driver by driver; one that cannot be holds up no other.

        Raises:
            PluginError: of a driver that is to be tried again; one that is not merely behind comes first.
        """
        failures: list[PluginError] = []
        by_driver: dict[str, list[Object]] = {driver: [] for driver in self.wanted()}
        for one in followed.objects.values():
            by_driver.setdefault(str(one["spec"]["driver"]), []).append(one)
        wanted = self.wanted()
        for driver, stored in by_driver.items():
            pools = wanted.get(driver, {})
            if pools is None or time.monotonic() < self._not_before.get(driver, 0.0):
                continue
            try:
                await self._bring_driver(client, driver, pools, stored)
            except _Uncounted as error:
                self._leave_out(driver, error.message)
            except NotSupported as error:
                await self._refuse(client, driver, error.message, stored)
            except PluginError as error:
                failures.append(error)
                if not isinstance(error, _FASTER):
                    self._troubles[driver] = error.message
            else:
                self._refused.pop(driver, None)
        if failures:
            raise min(failures, key=lambda one: isinstance(one, _FASTER))

    async def _refuse(self, client: Client, driver: str, why: str, stored: Sequence[Object]) -> None:
        """Offer nothing of a driver for a while: not what is stored, and not what was created a moment ago."""
        if self._refused.get(driver) != why:
            LOG.error("DRA driver %s offers nothing: %s", driver, why)
        self._refused[driver] = why
        self._not_before[driver] = time.monotonic() + _UNSHARED
        self._doubt(driver)
        pools = self.wanted().get(driver) or {}
        made = [one for pool in pools.values() if pool is not None for one in self._slices(driver, pool)]
        await self._delete(client, sorted({str(one["metadata"]["name"]) for one in (*stored, *made)}))

    def _leave_out(self, driver: str, why: str) -> None:
        """Offer no device of a driver that overlaps others, for a while: all others are offered at once."""
        if self._uncounted.get(driver, ("", 0.0))[0] != why:
            LOG.error("DRA driver %s: %s", driver, why)
        self._uncounted[driver] = why, time.monotonic() + _UNSHARED
        self._doubt(driver)
        self.news.set()

    def _doubt(self, driver: str) -> None:
        """Have it tried out again what the server makes of a driver's devices."""
        self._checked = {one for one in self._checked if one[0] != driver}

    async def _bring_driver(
        self,
        client: Client,
        driver: str,
        pools: Mapping[str, Pool | None],
        stored: Sequence[Object],
    ) -> None:
        """Bring the slices of one driver in line.

        Raises:
            NotSupported: the cluster cannot share devices, or count what those that overlap take.
            Conflict, AlreadyExists: it is to be done again.
            PluginError: the API server refuses, or cannot be asked.
        """
        unknown = {name for name, pool in pools.items() if pool is None}
        stored = [one for one in stored if one["spec"]["pool"]["name"] not in unknown]
        listed = [pool for pool in pools.values() if pool is not None]
        if not self._uid and listed:
            self._uid = await self._node_uid(client)
        counted = time.monotonic() >= self._uncounted.get(driver, ("", 0.0))[1]
        wanted = [one for pool in listed for one in self._slices(driver, pool, counted=counted)]
        todo = changes(wanted, stored)
        stubborn = self._stubborn(todo, stored)
        if stubborn:
            self._troubles[driver] = f"the API server stores something else than it is sent: {', '.join(stubborn)}"
        else:
            self._troubles.pop(driver, None)
        if not todo or stubborn:
            self._is_as_wanted(driver, counted=counted and not stubborn)
            return
        if todo.create:  # the Node may be another one by now, and the slices have gone with the former
            uid = await self._node_uid(client)
            if uid != self._uid:
                self._uid = uid
                raise Conflict(f"node {self.node} was made anew")
        await self._try_out(client, driver, wanted)
        await self._store(client, driver, todo)
        self._is_as_wanted(driver, counted=counted)

    def _is_as_wanted(self, driver: str, *, counted: bool) -> None:
        if counted:
            self._uncounted.pop(driver, None)

    async def _store(self, client: Client, driver: str, todo: Changes) -> None:
        """Write, and look at what has become of it; raises as `_bring_driver` does."""
        # What is there is what the watch tells, and nothing else: somebody may have deleted by now what was written.
        answers = [await _replace(client, one) for one in todo.replace]
        answers += [await client.create(RESOURCE_SLICES, one) for one in todo.create]
        await self._delete(client, todo.delete)
        sent = [*todo.replace, *todo.create]
        self._answers |= {
            str(one["metadata"]["name"]): (_content(one), _content(answer))
            for one, answer in zip(sent, answers, strict=True)
        }
        try:
            self._compare(driver, sent, answers)
        except _Uncounted:  # what is there now would be given away at once
            await self._delete(client, [str(one["metadata"]["name"]) for one in sent])
            raise

    def _stubborn(self, todo: Changes, stored: Sequence[Object]) -> list[str]:
        """Return the slices of which the server has made what it has now when it was sent just this.

        To write them again would go on for ever; none if there is anything else to be written.
        """
        there = {str(one["metadata"]["name"]): _content(one) for one in stored}
        sent = {str(one["metadata"]["name"]): _content(one) for one in todo.replace}
        known = all(self._answers.get(name) == (content, there[name]) for name, content in sent.items())
        return [*sent] if known and not todo.create and not todo.delete else []

    def _slices(self, driver: str, pool: Pool, *, counted: bool = True) -> list[Object]:
        fitting = pool if self._taints else without_unusable(pool)
        fitting = fitting if counted else without_overlapping(fitting)
        for sentence in left_out(fitting):
            if sentence not in self._warned:
                self._warned.add(sentence)
                LOG.warning("DRA driver %s: %s", driver, sentence)
        there = {one.name for one in fitting.devices}
        left_out_of_it = [one for one in pool.devices if one.name not in there]
        return slices_of(driver, self.node, self._uid, fitting, 1, self.taint, left_out_of_it)

    async def _try_out(self, client: Client, driver: str, wanted: Sequence[Object]) -> None:
        """Ask once what the server would make of a device that is shared or overlaps, before it can be allocated."""
        found = {name: one for name in _TRIED if (driver, name) not in self._checked and (one := _with(name, wanted))}
        tried = {one["metadata"]["name"]: one for one in found.values()}
        trials = [{**one, "metadata": {**one["metadata"], "name": f"{_TRIAL}{at}"[:253]}} for at, one in tried.items()]
        self._compare(driver, trials, [await client.create(RESOURCE_SLICES, one, dry_run=True) for one in trials])
        self._checked |= {(driver, name) for name in found}

    def _compare(self, driver: str, sent: Sequence[Object], answers: Sequence[Object]) -> None:
        """Look at what was stored.

        Raises:
            NotSupported: devices that were to be shared are offered as wholes, or such that overlap as if they did not.
        """
        found = difference(sent, answers)
        if not found:
            return
        if found.unshared:
            raise NotSupported(found.sentence)
        if found.uncounted:
            raise _Uncounted(found.sentence)
        if found.sentence not in self._warned:
            self._warned.add(found.sentence)
            LOG.warning("DRA driver %s: %s", driver, found.sentence)
        if "taints" in found.dropped and self._taints:
            self._taints = False
            self.news.set()

    async def _node_uid(self, client: Client) -> str:
        try:
            return str((await client.get(NODES, self.node))["metadata"]["uid"])
        except NotFound:
            raise NotFound(f"the cluster has no node {self.node!r}: look at node_name under [supervisor]") from None

    @staticmethod
    async def _delete(client: Client, names: Sequence[str]) -> None:
        for name in names:
            with suppress(NotFound):
                await client.delete(RESOURCE_SLICES, name)


def _content(one: Object) -> str:
    """Return what a slice says, without how often it has changed."""
    spec = one["spec"]
    pool = {name: value for name, value in spec["pool"].items() if name != "generation"}
    return json.dumps({**spec, "pool": pool}, sort_keys=True)


def _with(field: str, slices: Sequence[Object]) -> Object | None:
    """Return the first slice with a device that has a field."""
    return next((one for one in slices if any(field in device for device in one["spec"].get("devices", ()))), None)


async def _replace(client: Client, changed: Object) -> Object:
    try:
        return await client.replace(RESOURCE_SLICES, changed)
    except NotFound:
        raise Conflict(f"slice {key_of(changed)} is gone, and the watch has not told so yet") from None


def _is_ours(found: Object) -> bool:
    """Whether a slice is of a driver of this program, be it one that is not served any more."""
    return str(found["spec"]["driver"]).endswith(f".{DOMAIN}")
