"""Changes of a collection as they happen: all objects, then each change, and all objects again after a gap.

Owns: going on where a watch has ended (resource version, bookmarks), beginning anew where the server has forgotten
(410), pauses after failures, and the size of one change.
Refuses: a copy of the collection: whoever follows keeps what they need, and forgets it at each `Listed`.

Source: Kubernetes API concepts, "Efficient detection of changes"; client-go, tools/cache/reflector.go.
"""

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, cast

from nodeplug.contract.errors import NotFound, PluginError, TryAgain
from nodeplug.contract.inputs import API_CHANGE
from nodeplug.kubeapi.client import Bounds, Client, Listed
from nodeplug.kubeapi.connection import Connection, TooLarge
from nodeplug.kubeapi.refusals import Asked, Expired, refusal
from nodeplug.kubeapi.resources import Object, Resource

LOG: Final = logging.getLogger(__name__)
_SHORT: Final = 1.0
"""Seconds: a watch that ended sooner, without a change, has failed (reflector.go)."""
_CERTAIN: Final = 2
"""Times that a kind must be missing in a row before it has no objects: a server that starts may miss it once."""


@dataclass(frozen=True, slots=True)
class Changed:
    """One object has changed.

    Attributes:
        how: what happened to it, as far as a selector lets it be seen.
        object: its state; of one that was deleted, the last.
    """

    how: Literal["ADDED", "MODIFIED", "DELETED"]
    object: Object


class Pauses:
    """Ever longer pauses between tries, each by chance a little shorter or longer, so that nodes do not ask in step."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._failures = 0

    def next(self) -> float:
        """Return the seconds of the next pause."""
        pause: float = min(self._bounds.pause * 2 ** min(self._failures, 20), self._bounds.longest_pause)
        self._failures += 1
        return pause * random.uniform(0.5, 1.5)  # noqa: S311 - not to be secret

    def over(self) -> None:
        """Begin with the shortest again: something has succeeded."""
        self._failures = 0


class Watch:
    """A collection that is followed, for ever.

    Args:
        client: who asks.
        resource: of which kind.
        namespace: where; empty for all of them.
        labels: a label selector.
        fields: a field selector.
        kept: what of an object is in `Listed`, or None; changes have whole ones.
        optional: whether a cluster may do without the kind, which is then no trouble and has no objects.

    Attributes:
        trouble: why nothing is known of the collection at present; empty while it is followed.
        absent: says that the cluster does not have the kind; empty if it has.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        kept: Callable[[Object], Object | None] = lambda found: found,
        optional: bool = False,
    ) -> None:
        self.trouble = self.absent = ""
        self._optional, self._absences = optional, 0
        self._client = client
        self._listing: dict[str, Any] = {"namespace": namespace, "labels": labels, "fields": fields, "kept": kept}
        self._asked = Asked("watch", resource, namespace)
        self._query = {"labelSelector": labels, "fieldSelector": fields}
        self._pauses = Pauses(client.bounds)

    async def changes(self) -> AsyncGenerator[Listed | Changed, None]:
        """Yield all objects, then each change; all objects again when changes were missed. Use it in `aclosing`.

        Nothing ends it: refusals and failures are told in `trouble` and in the log, and tried again, for rights are
        granted and servers come back.
        """
        while True:
            try:
                listed = await self._client.list(self._asked.resource, **self._listing)
                self._is_there()
                yield listed
                async with aclosing(self._follow(listed.version)) as followed:
                    async for change in followed:
                        yield change
            except Expired as error:
                LOG.debug("%s", error)
                await asyncio.sleep(self._pauses.next())
            except PluginError as error:
                if not (self._optional and isinstance(error, NotFound)):
                    await self._rest(error)
                    continue
                self._is_absent()
                if self._absences == _CERTAIN:
                    yield Listed((), "")
                await asyncio.sleep(self._pauses.next())

    async def _follow(self, version: str) -> AsyncGenerator[Changed, None]:
        """Yield changes after a resource version, with one request after another, until the server has forgotten it."""
        while True:
            try:
                async with aclosing(self._lines(version)) as lines:
                    async for line in lines:
                        event = self._read(line)
                        found: Object = event["object"]
                        version = str(found["metadata"]["resourceVersion"])
                        self._pauses.over()
                        if event["type"] != "BOOKMARK":
                            yield Changed(event["type"], found)
            except (Expired, TooLarge):
                raise
            except TryAgain as error:
                await self._rest(error)

    def _read(self, line: bytes) -> dict[str, Any]:
        try:
            event = API_CHANGE.loads(line)
            kind, found = event["type"], event["object"]
            if kind == "ERROR":
                body = json.dumps(found).encode()
                raise refusal(self._asked, int(found.get("code") or HTTPStatus.INTERNAL_SERVER_ERROR), {}, body)
            if kind not in {"ADDED", "MODIFIED", "DELETED", "BOOKMARK"} or not found["metadata"]["resourceVersion"]:
                raise ValueError(kind)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise Expired(f"the API server sent something else than a change when asked to {self._asked}") from None
        return cast("dict[str, Any]", event)

    async def _lines(self, version: str) -> AsyncGenerator[bytes, None]:
        """Yield the lines of one request. No limit of time is held while one is yielded: it would end its reader."""
        clock, bounds = asyncio.get_running_loop().time, self._client.bounds
        seconds = bounds.watch * random.uniform(1, 2)  # noqa: S311 - so that not all watches end at once
        async with self._client.connection() as connection:
            begun = clock()
            await self._ask(connection, version, seconds)
            self._well()
            count = 0
            late = begun + seconds + bounds.grace
            async with aclosing(_lines_of(connection, bounds.line, late)) as lines:
                async for line in lines:
                    count += 1
                    yield line
        if clock() - begun >= _SHORT:
            self._pauses.over()
        elif not count:
            raise TryAgain(f"the API server ended at once what it was asked to {self._asked}")

    async def _ask(self, connection: Connection, version: str, seconds: float) -> None:
        more = {"watch": "1", "allowWatchBookmarks": "true", "timeoutSeconds": f"{max(seconds, 1):.0f}"}
        query = {**self._query, **more, "resourceVersion": version}
        try:
            async with asyncio.timeout(self._client.bounds.request):
                head = await self._client.send(connection, self._asked, query)
                if head.status < HTTPStatus.BAD_REQUEST:
                    return
                body = await connection.body(self._client.bounds.line)
        except TimeoutError:
            raise TryAgain(f"the API server does not answer when asked to {self._asked}") from None
        if head.status == HTTPStatus.UNAUTHORIZED:
            self._client.credentials.forget()
        raise refusal(self._asked, head.status, head.headers, body)

    def _is_absent(self) -> None:
        resource = self._asked.resource
        self._absences, self.trouble = self._absences + 1, ""
        self.absent = (
            f"the cluster does not have the kind {resource.kind} ({resource.api_version}), which is fine if nobody "
            "uses it; it is looked for again"
        )
        if self._absences == 1:
            LOG.info("%s", self.absent)

    def _is_there(self) -> None:
        if self.absent:
            LOG.info("the cluster has the kind %s now", self._asked.resource.kind)
        self.absent, self._absences = "", 0

    def _well(self) -> None:
        if self.trouble:
            LOG.info("the API server lets us %s again", self._asked)
        self.trouble = ""

    async def _rest(self, error: PluginError) -> None:
        trouble = " ".join(str(error).split())
        if trouble != self.trouble:
            LOG.warning("cannot %s: %s; it is tried again", self._asked, trouble)
        self.trouble = trouble
        await asyncio.sleep(self._pauses.next())


async def _lines_of(connection: Connection, limit: int, late: float) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a body; empty ones are left out."""
    rest = bytearray()
    async with aclosing(connection.pieces()) as pieces:
        while True:
            try:
                async with asyncio.timeout_at(late):
                    rest += await anext(pieces)
            except StopAsyncIteration:
                return
            except TimeoutError:
                raise TryAgain("the API server has been silent for too long in a watch") from None
            *lines, last = rest.split(b"\n")
            rest = bytearray(last)
            if max(map(len, [*lines, rest])) > limit:
                raise TooLarge(f"one change is longer than {limit >> 20} MiB")
            for line in filter(bytes.strip, map(bytes, lines)):
                yield line
