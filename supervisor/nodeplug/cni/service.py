"""CNI calls from the socket to a plugin and back.

Owns: the way of one call (decode, route, admit, run, record, encode) and what is answered when a plugin leaves a verb
out.
Refuses: the rules of the wire (`codec`), of threads and deadlines (`runner`), and of order (`admission`, `spool`).
Nothing but one JSON document ever reaches stdout.
"""

import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from nodeplug.cni import codec
from nodeplug.cni.admission import Admission
from nodeplug.cni.attachments import Asked, Attachment, Attachments, Key
from nodeplug.cni.delegate import HOOK_OF, VERB_OF
from nodeplug.cni.namespaces import UNKNOWN, Identity, reopen
from nodeplug.cni.nsid import Sighting, sight
from nodeplug.cni.orphans import Orphans
from nodeplug.cni.records import Records
from nodeplug.cni.spool import Spool
from nodeplug.contract.errors import Ending, NotReady, PluginError, TryAgain
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import CniAdd, CniAttachmentRequest, CniDel, CniGc, CniRequest, CniStatus
from nodeplug.exec.frame import Frame, Reply
from nodeplug.hosting.call import Call, caller_is_gone
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Hook, Runner, close_all
from nodeplug.hosting.slot import Route
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)


class _Owned:
    """The namespaces of one call, until the runner takes them over."""

    def __init__(self, namespaces: Iterable[Netns]) -> None:
        self.namespaces = tuple(namespaces)

    def close(self) -> None:
        namespaces, self.namespaces = self.namespaces, ()
        close_all(namespaces)

    def hand_over(self) -> "_Owned":
        taken, self.namespaces = _Owned(self.namespaces), ()
        return taken


@dataclass(slots=True)
class CniService:
    """Serves CNI. `handle` is the handler of the style "cni".

    Attributes:
        registry: who serves which claim.
        runner: calls hooks.
        attachments: what has been made.
        spool: DELs that came while the daemon was away.
        admission: how many calls run at once.
        orphans: ends what nobody else does.
    """

    registry: Registry
    runner: Runner
    attachments: Attachments
    spool: Spool
    admission: Admission = field(default_factory=Admission)
    _unready: dict[str, tuple[str, str]] = field(default_factory=dict)
    orphans: Orphans = field(init=False)
    _records: Records = field(init=False)
    _lookups: Lane = field(default_factory=lambda: Lane("the lookup of namespaces", 10.0))

    def __post_init__(self) -> None:
        self._records = Records(self.attachments)
        self.orphans = Orphans(self.registry, self.runner, self._records, self.admission)
        self.spool.is_served = lambda name: any(route.claim.name == name for route in self.registry.routes("cni"))

    async def handle(self, frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        """Answer one call; takes over the namespaces. Never raises but for cancellation, and for a DEL at the end.

        Raises:
            Ending: a DEL that has not begun. An error would make containerd give up on a sandbox; the entrypoint keeps
                a DEL that is left without an answer, and the next daemon does it.
        """
        call = Call(frame.env.get("CNI_COMMAND", ""), f"cni:{frame.name}", whole=True)
        owned = _Owned(namespaces)
        told = call.id
        try:
            stdout = await self._answer(frame, owned, call)
            self.runner.finished(call, None)
            return Reply(0, stdout, bytes(call.stderr))
        except PluginError as error:
            failure = error
            if isinstance(error, Ending) and call.verb == "DEL":
                self.runner.finished(call, error)
                raise
            told = self._log_failure(call, error)
        except Exception as error:
            LOG.exception("%s of %s failed in the daemon (request %s)", call.verb, call.claim, call.id)
            text = f"nodeplug failed: {type(error).__name__} (request {call.id}; the daemon's log has the traceback)"
            failure = PluginError(text)
        finally:
            owned.close()
        self.runner.finished(call, failure)
        return Reply(1, codec.encode_error(failure, codec.version_of(frame.stdin), told), bytes(call.stderr))

    def _log_failure(self, call: Call, error: PluginError) -> str:
        """Log a failure; return the id of the request under which the log has it.

        Runtimes ask for STATUS every few seconds and pass its text on: a reason that stays the same is logged once, and
        keeps the id of its first request.
        """
        reason, first = self._unready.get(call.claim, ("", ""))
        repeated = call.verb == "STATUS" and reason == str(error)
        if call.verb == "STATUS" and not repeated:
            self._unready[call.claim] = str(error), call.id
        level = logging.DEBUG if repeated else logging.WARNING
        LOG.log(level, "%s of %s failed (request %s): %s", call.verb, call.claim, call.id, error)
        return first if repeated else call.id

    async def replay(self, frame: Frame) -> Reply:
        """Answer one spooled DEL, in the host namespace of its ADD where that is known and alive (see `namespaces`)."""
        try:
            return await self.handle(frame, ())
        except Ending as error:  # it stays in the spool
            return Reply(1, str(error).encode())

    async def run_spool(self) -> None:
        """Replay spooled DELs until cancelled: a task of the daemon."""
        await self.spool.run(self.replay)

    async def _answer(self, frame: Frame, owned: _Owned, call: Call) -> bytes:
        if call.verb == "VERSION":
            return codec.encode_versions()
        if codec.is_void(frame):
            return b""
        if not owned.namespaces:
            host = await self._host_of(frame)
            owned.namespaces = await self._lookups.run(lambda: reopen(frame, host), late=close_all)
        request = codec.decode(frame, owned.namespaces)
        if isinstance(request, CniStatus):
            return await self._status(request, owned, call)
        route = self.registry.route("cni", frame.name)
        if isinstance(request, CniAdd):
            with self._records.adding(_key(request)):
                await self.spool.settle(_key(request), self.replay)
                return await self._admitted(route, request, owned, call)
        return await self._admitted(route, request, owned, call)

    async def _admitted(self, route: Route, request: CniRequest, owned: _Owned, call: Call) -> bytes:
        async with self.admission.enter(call.verb, request.network, request.claim):
            if isinstance(request, CniAdd) and caller_is_gone():
                # Its DEL may be done already, from the spool: what is made now would stay for ever.
                raise TryAgain("the caller ended before its ADD began")
            return await self._run(route, request, owned, call)

    async def _host_of(self, frame: Frame) -> Identity:
        """Return the host namespace in which ADD made the attachment that a frame without descriptors is about."""
        try:
            recorded = await self._records.find(Key(frame.name, *codec.attachment_of(frame)))
        except Unanswered:  # in the wrong namespace it would find nothing, and be done
            raise
        except (KeyError, PluginError):  # `decode` says it better
            return UNKNOWN
        return UNKNOWN if recorded is None else recorded.host

    async def _status(self, request: CniStatus, owned: _Owned, call: Call) -> bytes:
        """STATUS waits for other STATUS alone, and says every passing condition as 50: runtimes know no other code.

        Runtimes ask every few seconds: were each to hang in a thread of its own, they would quarantine the plugin.
        """
        call.key = f"STATUS of {call.claim}"
        try:
            route = self.registry.route("cni", request.claim)
            if "cni_status" in route.hooks:
                await self._hook(route, "cni_status", request, owned, call)
            elif "health" in route.hooks:
                await self.runner.call(route, "health", call, {})
        except TryAgain as error:
            raise NotReady(error.message, details=error.details) from None
        self._unready.pop(call.claim, None)
        return b""

    async def _run(self, route: Route, request: CniRequest, owned: _Owned, call: Call) -> bytes:
        hook = HOOK_OF[VERB_OF[type(request)]]
        call.key = str(_key(request)) if isinstance(request, CniAttachmentRequest) else f"{request.network} {call.verb}"
        if isinstance(request, CniAdd):
            return await self._add(route, request, owned, call)
        if isinstance(request, CniDel) and request.prev_result is None:
            with suppress(Unanswered):
                recorded = await self._records.find(_key(request))
                request = request if recorded is None else replace(request, prev_result=recorded.result)
        if hook in route.hooks:
            await self._hook(route, hook, request, owned, call)
        if isinstance(request, CniDel):
            await self._records.forget(_key(request))
        if isinstance(request, CniGc) and request.valid is not None:
            claim, network, valid = request.claim, request.network, request.valid
            await self._records.collect(lambda: self.attachments.forget_invalid(claim, network, valid))
        return b""

    async def _hook(
        self,
        route: Route,
        hook: str,
        request: CniRequest,
        owned: _Owned,
        call: Call,
        around: Callable[[Hook], Hook] = lambda hook: hook,
    ) -> Any:
        taken = owned.hand_over()
        return await self.runner.call(
            route, hook, call, {"request": request}, enter=request.host_netns, done=taken.close, around=around
        )

    async def _add(self, route: Route, request: CniAdd, owned: _Owned, call: Call) -> bytes:
        host = request.host_netns.identity  # the descriptor is closed when the hook has ended
        seen: list[Sighting | None] = [None]

        def around(hook: Hook) -> Hook:
            def add(**arguments: Any) -> Any:
                seen[0] = sight(request.netns)
                return hook(**arguments)

            return add

        result = await self._hook(route, "cni_add", request, owned, call, around) if "cni_add" in route.hooks else None
        return await self._added(request, result, host, seen[0])

    async def _added(self, request: CniAdd, result: Any, host: Identity, sighting: Sighting | None) -> bytes:
        try:
            stdout = codec.encode_result(result, request.version)
        except (AttributeError, TypeError, ValueError) as error:
            raise PluginError(
                f"plugin {request.claim!r} returned a CniResult that is no CNI result: {error}; "
                "its addresses must be ipaddress values and its numbers int"
            ) from error
        asked = Asked(request.version, request.config, request.args, request.path)
        made = Attachment(_key(request), request.netns.path, result, host=host, sighting=sighting, asked=asked)
        await self._records.keep(made)
        return stdout


def _key(request: CniAttachmentRequest) -> Key:
    return Key(request.claim, request.network, request.container_id, request.ifname)
