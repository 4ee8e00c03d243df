"""Events about pods of this node, and about the node: what happened, how often, and no flood of it.

Owns: a bounded queue; one event for what happens again and again (a series); and giving up what cannot be told.
Refuses: to be waited for: whoever tells it something goes on at once, with or without an API server.
"""

import asyncio
import re
import secrets
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final

from nodeplug.cluster.event_objects import REASONS, Happening, Subject, event, series
from nodeplug.cluster.requests import Requests
from nodeplug.contract.errors import AlreadyExists, Ending, InProgress, InvalidRequest, NotFound, PluginError
from nodeplug.contract.values import Pod, PodReport
from nodeplug.hosting.call import Call
from nodeplug.kubeapi.refusals import Forbidden
from nodeplug.kubeapi.resources import PODS, REPORTED_EVENTS

KEPT: Final = 200
"""Happenings that are kept, told or not; the oldest goes first."""
AGAIN: Final = 60.0
"""Seconds between two counts of one series."""
FORGOTTEN: Final = 600.0
"""Seconds without another one after which a series has ended."""
_PAUSE: Final = 5.0
_NUMBERS: Final = re.compile(r"\d+(\.\d+)?|\(request [0-9a-f]+\)")
Key = tuple[Subject, str, str]


@dataclass(slots=True)
class _Series:
    what: Happening
    first: datetime
    last: datetime
    count: int = 1
    told: int = 0
    told_at: float = float("-inf")
    name: str = ""
    number: str = field(default_factory=lambda: secrets.token_hex(8))


@dataclass(slots=True)
class Events:
    """Events that are to be told. Event loop only.

    Attributes:
        node: the name of this node.
        lost: happenings that were given up untold.
        sent: events that were created.
        trouble: why none can be told now.
    """

    node: str
    lost: int = 0
    sent: int = 0
    trouble: str = ""
    _series: dict[Key, _Series] = field(default_factory=dict)
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _warned: frozenset[Key] = frozenset()

    def finished(self, call: Call, error: PluginError | None) -> None:
        """Take in the end of a caller's request."""
        reason = REASONS.get(call.verb)
        if reason is None or error is None or isinstance(error, Ending | InProgress):
            return
        subject = Subject.of(call.pod) if call.pod is not None else Subject("Node", self.node, "", self.node)
        if call.pod is None and call.verb != "Allocate":
            return  # a runtime that is not kubelet's
        style, _, claim = call.claim.partition(":")
        note = f"{call.verb} of {style} {claim}: {error.message} (request {call.id})"
        self.add(Happening(subject, reason, call.verb, note))

    def warn(self, pods: Iterable[PodReport]) -> None:
        """Take in what plugins warn about: what is new is told, and what lasts is counted at most once a minute."""
        found = [
            Happening(Subject.of(Pod(one.name, one.namespace, one.uid)), warning.reason, "Watching", warning.note)
            for one in pods
            for warning in one.warnings
        ]
        for one in found:
            known = self._series.get(_key(one))
            lasting = known is not None and _key(one) in self._warned
            if not lasting or (known is not None and (datetime.now(UTC) - known.last).total_seconds() >= AGAIN):
                self.add(one)
        self._warned = frozenset(map(_key, found))

    def add(self, what: Happening) -> None:
        """Take in something that has happened."""
        now, key = datetime.now(UTC), _key(what)
        known = self._series.pop(key, None)
        if known is not None and (now - known.last).total_seconds() >= FORGOTTEN:
            known = None
        if known is None:
            known = _Series(what, now, now)
        else:
            known.count, known.last = known.count + 1, now
        self._series[key] = known  # the last in the queue
        while len(self._series) > KEPT:
            oldest = self._series.pop(next(iter(self._series)))
            self.lost += oldest.count - oldest.told
        self._news.set()

    @property
    def waiting(self) -> int:
        """Series that have something to be told."""
        return sum(one.told < one.count for one in self._series.values())

    async def run(self, requests: Requests, well: Callable[[], None] = lambda: None) -> None:
        """Tell what is due until cancelled; `well` is called after each that was told.

        Raises:
            PluginError: the API server refuses all, or cannot be asked.
        """
        while True:
            due = self._due()
            if due is not None:
                await self._tell(due, requests)
                well()
                continue
            self._news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(_PAUSE):
                    await self._news.wait()

    def _due(self) -> _Series | None:
        """Return the oldest series that is to be told now; forget those that have ended."""
        now = datetime.now(UTC)
        ended = [
            key
            for key, one in self._series.items()
            if one.told == one.count and (now - one.last).total_seconds() >= FORGOTTEN
        ]
        for key in ended:
            del self._series[key]
        late = asyncio.get_running_loop().time() - AGAIN
        return next((one for one in self._series.values() if one.told < one.count and one.told_at <= late), None)

    async def _tell(self, one: _Series, requests: Requests) -> None:
        what, count = one.what, one.count
        one.told_at = asyncio.get_running_loop().time()
        try:
            if one.name and count > 1:
                await requests.patch(REPORTED_EVENTS, one.name, series(count, one.last), what.subject.home)
            else:
                await self._create(one, requests)
            one.told = max(one.told, count)
            self.trouble = ""
        except NotFound:  # the event has expired, its namespace ends, or the pod is gone
            if one.name:
                one.name, one.number, one.told_at = "", secrets.token_hex(8), float("-inf")
            else:
                one.told = count
        except (InvalidRequest, Forbidden) as error:
            self.trouble, one.told = error.message, count
            self.lost += 1

    async def _create(self, one: _Series, requests: Requests) -> None:
        subject = one.what.subject
        if not subject.uid:  # without it, nobody who describes the pod is shown the event
            found = await requests.get(PODS, subject.name, subject.namespace)
            subject = Subject(subject.kind, subject.name, subject.namespace, str(found["metadata"]["uid"]))
        what = Happening(subject, one.what.reason, one.what.action, one.what.note)
        written = event(what, self.node, one.first, one.number)
        if one.count > 1:
            written |= series(one.count, one.last)
        with suppress(AlreadyExists):  # it is the one whose answer was lost
            await requests.create(REPORTED_EVENTS, written, subject.home)
        one.name = str(written["metadata"]["name"])
        self.sent += 1


def _key(what: Happening) -> Key:
    """Return what makes two happenings one: numbers in the note do not tell them apart."""
    return what.subject, what.reason, _NUMBERS.sub("#", what.note)
