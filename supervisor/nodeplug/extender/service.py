"""The front of scheduler extenders: one POST of kube-scheduler in, one answer out.

Owns: which claim and verb a path means, how many calls run at once, and where a body is read: a long one beside the
event loop.
Refuses: what bodies mean (`codec`), connections and their limits (`nodeplug.http`), and to answer for a plugin that
does not run: the scheduler asks again.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any, Final, TypeVar

from nodeplug.contract.errors import NotFound, NotSupported, PluginError, TryAgain, clip
from nodeplug.contract.values import ExtenderBind, ExtenderRequest
from nodeplug.extender import codec
from nodeplug.extender.codec import Asked, Verb
from nodeplug.extender.followed import FollowedCluster, completed
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Hook, Runner
from nodeplug.http.server import JSON, TEXT, Request, Response
from nodeplug.process.aside import aside

_LONG: Final = 64 << 10
"""Bytes of a body that is read beside the loop: 500 names have a third of it."""
_PATIENCE: Final = 0.9
"""Seconds that a call waits for another one to end; with the 4 of a hook, less than kube-scheduler waits by default."""
_NAMED: Final = 253 + 63 + 1
"""Characters of the longest name of a pod with its namespace."""
_T = TypeVar("_T")


@dataclass(slots=True)
class ExtenderService:
    """Serves what plugins claim. Event loop only.

    Attributes:
        registry: knows who claims a name.
        runner: calls hooks.
        concurrency: how many calls run at once.
        cluster: completes what kube-scheduler tells of names alone; None without `follow`.
    """

    registry: Registry
    runner: Runner
    concurrency: int
    cluster: FollowedCluster | None = None
    _front: Front = field(init=False)
    _room: asyncio.Semaphore = field(init=False)
    _open: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        # The scheduler asks about a pod that does not fit again and again.
        self._front = Front(self.runner, repeated=frozenset(codec.VERBS))
        self._room = asyncio.Semaphore(self.concurrency)
        self._open.set()

    def hold(self) -> None:
        """Let new calls wait, because another daemon is about to take over."""
        self._open.clear()

    def release(self) -> None:
        """Let them in again."""
        self._open.set()

    async def answer(self, request: Request) -> Response:
        """Answer one request; never raises a PluginError."""
        claim, _, name = request.path.strip("/").rpartition("/")
        try:
            verb = codec.verb(name)
            if not claim:
                raise NotFound("no extender is named before the verb")
        except NotFound as error:
            return Response(HTTPStatus.NOT_FOUND, f"{error}; POST /EXTENDER/VERB\n".encode())
        if request.method != "POST":
            allowed = {"Allow": "POST"}
            return Response(HTTPStatus.METHOD_NOT_ALLOWED, b"kube-scheduler asks by POST\n", headers=allowed)
        call = Call(verb.name, "extender:?")  # a stranger's name must not become a series
        try:
            body = await self._front.serve(call, self._admitted(call, claim, verb, request.body))
        except PluginError as error:
            status, body = codec.encode_error(verb, error)
            return Response(HTTPStatus(status), body, JSON if status == HTTPStatus.OK else TEXT)
        return Response(HTTPStatus.OK, body, JSON)

    async def _admitted(self, call: Call, claim: str, verb: Verb, body: bytes) -> bytes:
        async with self._place():
            return await self._asked(call, claim, verb, body)

    @asynccontextmanager
    async def _place(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(_PATIENCE):
                await self._open.wait()
                await self._room.acquire()
        except TimeoutError:
            raise TryAgain(
                f"no place is free: at most {self.concurrency} calls of extenders run at once; see `nodeplug status` "
                "for one that hangs, or raise concurrency of [extender]"
                if self._open.is_set()
                else "another daemon is about to take over; ask again"
            ) from None
        try:
            yield
        finally:
            self._room.release()

    async def _asked(self, call: Call, claim: str, verb: Verb, body: bytes) -> bytes:
        route = self.registry.route("extender", claim)
        call.claim = str(route.claim)
        if verb.hook not in route.hooks:
            raise NotSupported(
                f"extender {claim!r} does not {verb.name}: plugin {route.plugin!r} has no {verb.hook}; leave "
                f"{verb.option} out of kube-scheduler's configuration"
            )
        work = _beside if len(body) > _LONG else _here
        asked: Asked = await work(lambda: verb.decode(claim, body), f"read:{call.id}")
        if self.cluster is not None:
            asked = replace(asked, request=await completed(asked.request, self.cluster))
        request = asked.request
        # One Binding of a pod at a time, since the scheduler asks again when it was told nothing in time.
        call.key = f"bind {request.uid}" if isinstance(request, ExtenderBind) else f"{verb.name} {call.id}"
        call.about = _pod(request)
        around = _in_a_thread if asked.written is not None else None
        answer = await self.runner.call(route, verb.hook, call, {"request": request}, around=around)
        written: bytes = await work(lambda: verb.encode(asked, answer), f"write:{call.id}")
        return written


def _pod(request: ExtenderRequest) -> str:
    """Name the pod that a request is about."""
    if isinstance(request, ExtenderBind):
        return f"{request.namespace}/{request.pod}"
    metadata = getattr(request, "pod", {}).get("metadata")
    named = metadata if isinstance(metadata, Mapping) else {}
    return clip(f"{named.get('namespace', '')}/{named.get('name', '')}", _NAMED)


def _in_a_thread(hook: Hook) -> Hook:
    """Have a hook called in a thread of the daemon, in which whole nodes are written for another process."""
    return hook


async def _beside(work: Callable[[], _T], name: str) -> Any:
    return await aside(work, name)


async def _here(work: Callable[[], _T], _: str) -> Any:
    return work()
