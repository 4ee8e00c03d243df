"""The verbs of the API: get, list, create, update, patch, apply, delete.

Owns: a few connections that are used again, how many requests there are at once, how long one may take, and asking
again where that is safe: what only reads, and what the server wants to be asked later (Retry-After).
Refuses: changes as they happen (`watch`), and what objects mean.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, Self
from urllib.parse import urlencode

from nodeplug.contract.errors import DeadlineExceeded, TryAgain, Uncertain
from nodeplug.contract.inputs import API_ANSWER, API_CHANGE
from nodeplug.kubeapi.connection import Connection, Head
from nodeplug.kubeapi.credentials import Credentials
from nodeplug.kubeapi.refusals import Asked, Expired, Unreachable, refusal, retry_after
from nodeplug.kubeapi.resources import Object, Resource
from nodeplug.process.lane import Lane
from nodeplug.release import own_version

_METHODS: Final = {
    "get": "GET",
    "list": "GET",
    "watch": "GET",
    "create": "POST",
    "update": "PUT",
    "patch": "PATCH",
    "delete": "DELETE",
}
JSON: Final = "application/json"
PATCHES: Final = {"merge": "application/merge-patch+json", "json": "application/json-patch+json"}
APPLY: Final = "application/apply-patch+yaml"
"""Of a server-side apply, whose body may be JSON, since that is YAML."""
_PATIENCE_FOR_NAMES: Final = 10.0
_IDLE: Final = 60.0
"""Seconds after which a connection is not used again: the server closes it at 90 (k8s.io/apiserver, IdleTimeout), and
what is sent into that is lost."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """The limits of one client.

    Attributes:
        at_once: requests at once; watches are not among them.
        connect: seconds to connect, TLS included.
        request: seconds for one request, waiting and repeating included.
        body: bytes of one answer; a page of a list is one.
        line: bytes of one change in a watch; an object has at most about 1.5 MiB (etcd).
        page: objects of a list that are asked for at once.
        watch: seconds after which the server is asked to end a watch, which then goes on with another request.
        grace: seconds that a watch may last beyond its time before the server counts as gone.
        pause: seconds of the first pause after a failure of a watch; each is twice as long as the one before.
        longest_pause: seconds of the longest.
    """

    at_once: int = 4
    connect: float = 10.0
    request: float = API_ANSWER.seconds
    body: int = API_ANSWER.size
    line: int = API_CHANGE.size
    page: int = 500
    watch: float = 300.0
    grace: float = 30.0
    pause: float = 0.8
    longest_pause: float = 30.0


@dataclass(frozen=True, slots=True)
class Listed:
    """All objects of a collection.

    Attributes:
        objects: each as JSON has it, with `kind` and `apiVersion`.
        version: the resource version at which these were all.
    """

    objects: tuple[Object, ...]
    version: str

    def __iter__(self) -> Iterator[Object]:
        return iter(self.objects)


class Client:
    """A client of one API server. Event loop only; `close` it at the end, or use it in `async with`.

    Args:
        credentials: who asks whom.
        bounds: its limits.
    """

    def __init__(self, credentials: Credentials, bounds: Bounds = Bounds()) -> None:
        self.bounds = bounds
        self.credentials = credentials
        self._names = Lane("the resolver of names", _PATIENCE_FOR_NAMES)
        self._places = asyncio.Semaphore(bounds.at_once)
        self._idle: list[Connection] = []
        self._agent = f"nodeplug/{own_version()}"

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Return an object.

        Raises:
            NotFound: there is none of that name.
            PluginError: every other refusal, as `refusals` names it; so for all methods here.
        """
        return await self._object(Asked("get", resource, namespace, name))

    async def list(
        self,
        resource: Resource,
        namespace: str = "",
        *,
        labels: str = "",
        fields: str = "",
        kept: Callable[[Object], Object | None] = lambda found: found,
    ) -> Listed:
        """Return all objects, page by page.

        Args:
            resource: of which kind.
            namespace: where; empty for all of them.
            labels: a label selector.
            fields: a field selector.
            kept: what is kept of an object, or None; asked page by page, so that thousands are never held whole.
        """
        asked = Asked("list", resource, namespace)
        query = {"labelSelector": labels, "fieldSelector": fields}
        try:
            return await self._pages(asked, query, self.bounds.page, kept)
        except Expired:  # a page came too late, and the list has to begin anew: in one piece, as client-go does
            return await self._pages(asked, query, 0, kept)

    async def _pages(
        self, asked: Asked, query: Mapping[str, str], page: int, kept: Callable[[Object], Object | None]
    ) -> Listed:
        found: list[Object] = []
        further = ""
        while True:
            limit = {"limit": str(page or ""), "continue": further}
            answer = await self._object(asked, {**query, **limit})
            kind = {"apiVersion": asked.resource.api_version, "kind": asked.resource.kind}
            found += filter(None, (kept({**kind, **item}) for item in answer.pop("items", None) or ()))
            metadata = answer.get("metadata") or {}
            further = metadata.get("continue") or ""
            if not further:
                return Listed(tuple(found), str(metadata.get("resourceVersion", "")))

    async def create(
        self,
        resource: Resource,
        made: Mapping[str, Any],
        namespace: str = "",
        *,
        part_of: tuple[str, str] = ("", ""),
        dry_run: bool = False,
    ) -> Object:
        """Create an object, and return it as the server has it.

        Args:
            resource: of which kind.
            made: the object.
            namespace: where; empty for one of the whole cluster.
            part_of: a name and a subresource, such as `binding`, if `made` becomes that of another object; it has a
                kind of its own then.
            dry_run: create nothing, and return what the server would have.

        Raises:
            AlreadyExists: there is one of that name.
            Uncertain: the connection broke off, and the object may be there.
        """
        asked = Asked("create", resource, namespace, *part_of)
        return await self._object(asked, {"dryRun": "All" if dry_run else ""}, body=_complete(resource, made))

    async def replace(
        self, resource: Resource, changed: Mapping[str, Any], namespace: str = "", part: str = ""
    ) -> Object:
        """Replace an object that was read before: its `resourceVersion` says which state was meant.

        Raises:
            Conflict: it has changed since.
            NotFound: it is not there any more.
        """
        name = str(changed["metadata"]["name"])
        return await self._object(Asked("update", resource, namespace, name, part), body=_complete(resource, changed))

    async def patch(
        self,
        resource: Resource,
        name: str,
        patch: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        namespace: str = "",
        part: str = "",
    ) -> Object:
        """Change parts of an object.

        Args:
            resource: of which kind.
            name: of the object.
            patch: a mapping is a merge patch (RFC 7386), which removes what is None; a list is a JSON patch (RFC 6902),
                whose `test` is a precondition.
            namespace: of the object.
            part: a subresource, such as `status`.

        Raises:
            Conflict: a merge patch has a `metadata.resourceVersion`, and the object another.
            InvalidRequest: the `test` of a JSON patch does not hold, or the result is no valid object.
        """
        form: Literal["merge", "json"] = "merge" if isinstance(patch, Mapping) else "json"
        return await self._object(Asked("patch", resource, namespace, name, part), body=patch, form=PATCHES[form])

    async def apply(
        self,
        resource: Resource,
        applied: Mapping[str, Any],
        manager: str,
        namespace: str = "",
        part: str = "",
        *,
        force: bool = False,
    ) -> Object:
        """Have an object contain these fields, and of those that this manager alone applied before no others.

        An object that is not there is created, unless `applied` has a `metadata.uid` (Kubernetes API concepts,
        "Server-Side Apply").

        Args:
            resource: of which kind.
            applied: the fields, with `metadata.name`.
            manager: who applies.
            namespace: of the object.
            part: a subresource, such as `status`.
            force: take fields that others have set to another value.

        Raises:
            FieldConflict: others have set fields to another value, and nothing was changed.
            Conflict: `applied` has the uid of another object, or of one that is gone.
        """
        asked = Asked("patch", resource, namespace, str(applied["metadata"]["name"]), part)
        query = {"fieldManager": manager, "force": "true" if force else ""}
        return await self._object(asked, query, body=_complete(resource, applied), form=APPLY)

    async def delete(
        self, resource: Resource, name: str, namespace: str = "", *, uid: str = "", resource_version: str = ""
    ) -> Object:
        """Delete an object; where it has finalizers, it goes when they are gone.

        Args:
            resource: of which kind.
            name: of the object.
            namespace: of the object.
            uid: only this very object, and no later one of the same name.
            resource_version: only this state of it.

        Raises:
            NotFound: there is none of that name.
            Conflict: there is one, and it is another one, or has changed.
        """
        conditions = {"uid": uid, "resourceVersion": resource_version}
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "preconditions": {key: value for key, value in conditions.items() if value},
        }
        return await self._object(Asked("delete", resource, namespace, name), body=body)

    async def _object(
        self, asked: Asked, query: Mapping[str, str] | None = None, *, body: object = None, form: str = JSON
    ) -> Object:
        data = b"" if body is None else json.dumps(body).encode()
        late = asyncio.get_running_loop().time() + self.bounds.request
        try:
            async with asyncio.timeout_at(late):
                answer = await self._answer(asked, query or {}, data, form, late)
        except TimeoutError:
            text = f"the API server did not {asked} within {self.bounds.request:g} s"
            raise (DeadlineExceeded(text) if asked.reads else Uncertain(f"{text}; it may still do it")) from None
        try:
            found = API_ANSWER.loads(answer)
        except ValueError:
            found = None
        if not isinstance(found, dict):
            raise TryAgain(f"the API server answered the request to {asked} with something that is no object in JSON")
        return found

    async def _answer(self, asked: Asked, query: Mapping[str, str], data: bytes, form: str, late: float) -> bytes:
        """Ask until there is an answer that is no wish to be asked later, or one to be asked too late."""
        known = False
        now = asyncio.get_running_loop().time
        while True:
            async with self._places:
                head, body = await self._once(asked, query, data, form)
            if head.status < HTTPStatus.BAD_REQUEST:
                return body
            if head.status == HTTPStatus.UNAUTHORIZED and not known:
                known = True
                self.credentials.forget()
                continue
            pause = retry_after(head.status, head.headers)
            if pause is None or now() + pause >= late:
                raise refusal(asked, head.status, head.headers, body)
            await asyncio.sleep(max(pause, self.bounds.pause))  # it has done nothing

    async def _once(self, asked: Asked, query: Mapping[str, str], data: bytes, form: str) -> tuple[Head, bytes]:
        """Send a request; what only reads is sent again if a connection that was used before has broken."""
        while True:
            connection = await self._connected()
            again = asked.reads and connection.used > 0
            try:
                head = await self.send(connection, asked, query, data, form)
                body = await connection.body(self.bounds.body)
            except Unreachable as error:
                await connection.close()
                if again:
                    continue
                if asked.reads:
                    raise
                raise Uncertain(f"{error}; the server may have done it: {asked}") from None
            except BaseException:
                await connection.close()
                raise
            await self._keep(connection)
            return head, body

    async def send(
        self, connection: Connection, asked: Asked, query: Mapping[str, str], data: bytes = b"", form: str = JSON
    ) -> Head:
        """Send a request on a connection, and return the begin of its response."""
        access = self.credentials.access
        where = access.prefix + asked.resource.path(asked.namespace, asked.name, asked.part)
        words = urlencode({key: value for key, value in query.items() if value})
        headers = {"User-Agent": self._agent, "Accept": JSON}
        if token := (await self.credentials.show()).token:
            headers["Authorization"] = f"Bearer {token}"
        if data:
            headers["Content-Type"] = form
        return await connection.ask(_METHODS[asked.verb], f"{where}?{words}" if words else where, headers, data)

    async def _connected(self) -> Connection:
        """Return a connection that is open, an old one if there is."""
        shown = await self.credentials.show()
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.tls is shown.tls and time.monotonic() - connection.since < _IDLE:
                return connection
            await connection.close()
        return await self._connect()

    async def _connect(self) -> Connection:
        shown = await self.credentials.show()
        access = self.credentials.access
        try:
            async with asyncio.timeout(self.bounds.connect) as bound:
                return await Connection.open(access, shown.tls, self._names, bound.when())
        except TimeoutError:
            text = f"no connection to the API server {access.host}:{access.port} within {self.bounds.connect:g} s"
            raise Unreachable(text) from None

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Connection]:
        """Give a connection of its own to something that keeps it long, and close it then."""
        connection = await self._connect()
        try:
            yield connection
        finally:
            await connection.close()

    async def _keep(self, connection: Connection) -> None:
        if connection.reusable and len(self._idle) < self.bounds.at_once:
            connection.since = time.monotonic()
            self._idle.append(connection)
        else:
            await connection.close()

    async def close(self) -> None:
        """Close the connections that nobody uses just now."""
        while self._idle:
            await self._idle.pop().close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _complete(resource: Resource, made: Mapping[str, Any]) -> Object:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **made}
