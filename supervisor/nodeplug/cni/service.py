"""CNI calls from the socket to a plugin and back.

Owns: the sequence of one call (decode, route, admit, run, record, encode), and the answer to a verb that a plugin does
not implement.
Refuses: the rules of the wire (`codec`), of threads and deadlines (`runner`), and of order (`admission`, `spool`), and
anything on stdout but one JSON document.
"""

import dataclasses
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from nodeplug.cni import codec
from nodeplug.cni.admission import Admission
from nodeplug.cni.attachments import Asked, Attachment, Attachments, Begun, Key
from nodeplug.cni.delegate import HOOK_OF
from nodeplug.cni.namespaces import UNKNOWN, Identity, host_or_own, reopen
from nodeplug.cni.nsid import Sighting, sight
from nodeplug.cni.orphans import Orphans
from nodeplug.cni.reconciliation import Reconciliation
from nodeplug.cni.records import Records
from nodeplug.cni.spool import Spool
from nodeplug.contract.errors import Ending, NotReady, PluginError, TryAgain
from nodeplug.contract.netns import Netns
from nodeplug.contract.values import CniAdd, CniAttachmentRequest, CniClaim, CniDel, CniGc, CniRequest, CniStatus, Pod
from nodeplug.exec.frame import Frame, Reply
from nodeplug.hosting.call import Call, caller_is_gone
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Hook, Runner, close_all
from nodeplug.hosting.slot import Route
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class CniService:
    """Serves CNI; `handle` is the handler of the style "cni"."""

    registry: Registry
    runner: Runner
    attachments: Attachments
    spool: Spool
    admission: Admission = field(default_factory=Admission)
    orphans: Orphans = field(init=False)
    _front: Front = field(init=False)
    _records: Records = field(init=False)
    _lookups: Lane = field(default_factory=lambda: Lane("the lookup of namespaces", 10.0))

    def __post_init__(self) -> None:
        # A DEL that was not done because the daemon stops is no failure: the entrypoint spools it.
        self._front = Front(self.runner, quiet=(Ending,), repeated=frozenset({"STATUS"}))
        self._records = Records(self.attachments)
        self.orphans = Orphans(self.registry, self.runner, self._records, self.admission)
        self.spool.is_served = lambda name: any(route.claim.name == name for route in self.registry.routes("cni"))

    async def handle(self, frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        """Answer one call; takes ownership of the namespaces. Errors become answers, with one exception.

        Raises:
            Ending: a DEL that has not begun when the daemon stops, or whose record cannot be removed. An error would
                make containerd give up on the sandbox; without an answer, the entrypoint spools the DEL.
        """
        call = Call(frame.env.get("CNI_COMMAND", ""), f"cni:{frame.name}")
        if call.verb == "VERSION":  # from the daemon itself, each second: entrypoints answer it without the daemon
            close_all(namespaces)
            return Reply(0, codec.encode_versions())
        owned = list(namespaces)  # closed here, until the runner takes them over
        try:
            stdout = await self._front.serve(call, self._answer(frame, owned, call))
        except PluginError as error:
            if isinstance(error, Ending) and call.verb == "DEL":
                raise
            return Reply(1, codec.encode_error(error, codec.version_of(frame.stdin)), bytes(call.stderr))
        finally:
            close_all(owned)
        return Reply(0, stdout, bytes(call.stderr))

    async def replay(self, frame: Frame) -> Reply:
        """Answer one spooled DEL, in the host namespace of its ADD if that is known and exists (see `namespaces`)."""
        try:
            return await self.handle(frame, ())
        except Ending as error:  # it stays in the spool
            return Reply(1, str(error).encode())

    def reconciliation(self, caches: Sequence[Path], path: Path, interval: float) -> Reconciliation:
        """Return what ends the attachments of libcni's caches that are left over; it looks every `interval` seconds."""
        return Reconciliation(self.orphans, self.spool.is_served, caches, str(path), interval)

    async def run_spool(self) -> None:
        """Replay spooled DELs until cancelled: a task of the daemon."""
        await self.spool.run(self.replay)

    async def _answer(self, frame: Frame, owned: list[Netns], call: Call) -> bytes:
        if codec.is_void(frame):
            return b""
        if not owned:
            host = await self._host_of(frame)
            owned += await self._lookups.run(lambda: reopen(frame, host), late=close_all)
        request = codec.decode(frame, tuple(owned), uses_netns=len(owned) > 1 or self._uses_netns(frame.name))
        if isinstance(request, CniStatus):
            return await self._status(request, owned, call)
        route = self.registry.route("cni", frame.name)
        if isinstance(request, CniAdd):
            call.pod, key = pod_of_add(request), _key(request)
            with self._records.adding(key):
                await self.spool.settle(key, self.replay)
                return await self._admitted(route, request, owned, call)
        return await self._admitted(route, request, owned, call)

    def _uses_netns(self, name: str) -> bool:
        claims = (claim for claim, _ in self.registry.claimed(CniClaim) if claim.name == name)
        return all(claim.uses_netns for claim in claims)

    async def _admitted(self, route: Route, request: CniRequest, owned: list[Netns], call: Call) -> bytes:
        async with self.admission.enter(call.verb, request.network, request.claim):
            if isinstance(request, CniAdd) and caller_is_gone():
                # Its DEL may have been replayed from the spool already, so nothing would undo this ADD.
                raise TryAgain("the caller ended before its ADD began")
            return await self._run(route, request, owned, call)

    async def _host_of(self, frame: Frame) -> Identity:
        """Return the host namespace that ADD used for the attachment of a frame without descriptors."""
        try:
            recorded = await self._records.host_of(Key(frame.name, *codec.attachment_of(frame)))
        except Unanswered:  # in the wrong namespace the DEL would find nothing and succeed
            raise
        except (KeyError, PluginError):  # `decode` has the better message
            return UNKNOWN
        return UNKNOWN if recorded is None else recorded

    async def _status(self, request: CniStatus, owned: list[Netns], call: Call) -> bytes:
        """Serve STATUS, outside admission; every temporary failure becomes code 50, the only one that runtimes know.

        Runtimes ask every few seconds, so each STATUS waits for the one before: if each hung in its own thread, the
        plugin would be quarantined.
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
        return b""

    async def _run(self, route: Route, request: CniRequest, owned: list[Netns], call: Call) -> bytes:
        hook = HOOK_OF[type(request)]
        call.key = str(_key(request)) if isinstance(request, CniAttachmentRequest) else f"{request.network} {call.verb}"
        if isinstance(request, CniAdd):
            return await self._add(route, request, owned, call)
        if isinstance(request, CniDel) and request.prev_result is None:
            with suppress(Unanswered):
                recorded = await self._records.find(_key(request))
                request = request if recorded is None else replace(request, prev_result=recorded.result)
        if isinstance(request, CniDel):
            await self._delete(route, request, owned, call)
        elif hook in route.hooks:
            await self._hook(route, hook, request, owned, call)
        if isinstance(request, CniGc) and request.valid is not None:
            claim, network, valid = request.claim, request.network, request.valid
            await self._records.collect(lambda: self.attachments.forget_invalid(claim, network, valid))
        return b""

    async def _delete(self, route: Route, request: CniDel, owned: list[Netns], call: Call) -> None:
        """Call the hook, and forget the attachment."""
        in_thread = self._records.at_once and "cni_del" in route.hooks

        def around(hook: Hook) -> Hook:
            def delete(**arguments: Any) -> Any:
                answer = hook(**arguments)
                self.attachments.forget(_key(request))
                return answer

            return delete

        if "cni_del" in route.hooks:
            await self._hook(route, "cni_del", request, owned, call, around if in_thread else None)
        if in_thread:
            self._records.written(_key(request))
        elif not await self._records.forget(_key(request)):
            # If the daemon were killed now, the record would stay, and the next one would report a missing interface.
            raise Ending("the record of the attachment cannot be removed: the disk with run_dir does not respond")

    async def _hook(
        self,
        route: Route,
        hook: str,
        request: CniRequest,
        owned: list[Netns],
        call: Call,
        around: Callable[[Hook], Hook] | None = None,
    ) -> Any:
        done = partial(close_all, tuple(owned))
        owned.clear()
        return await self.runner.call(
            route, hook, call, {"request": request}, enter=request.host_netns, done=done, around=around
        )

    async def _add(self, route: Route, request: CniAdd, owned: list[Netns], call: Call) -> bytes:
        host = request.host_netns.identity  # the descriptor is closed when the hook has ended
        asked = Asked(request.version, request.config, request.args, request.path)
        added = await self._added(route, request, owned, call, asked)
        if added.stdout:
            self._records.written(_key(request))
            return added.stdout
        try:
            stdout = _encode(request, added.result)
        except PluginError:
            await self._take_back(route, request, host)
            raise
        await self._records.keep(added.attachment(request, host, asked))
        return stdout

    async def _take_back(self, route: Route, request: CniAdd, host: Identity) -> None:
        """Run the DEL of an ADD whose result no caller can have: nobody would know what it made."""
        if "cni_del" not in route.hooks:
            return
        fields = {one.name: getattr(request, one.name) for one in dataclasses.fields(CniAttachmentRequest)}
        call = Call("DEL", f"cni:{request.claim}", key=str(_key(request)))
        try:
            earlier = await self._records.find(_key(request))
            if earlier is not None and earlier.netns == request.netns.path:
                return  # the caller has the result of an earlier ADD, and the container needs its network
            opened = await self._lookups.run(lambda: host_or_own(host), late=Netns.close)
            deletion = CniDel(**{**fields, "host_netns": opened, "prev_result": None}, netns=None)
            await self.runner.call(
                route, "cni_del", call, {"request": deletion}, enter=opened, done=lambda: close_all((opened,))
            )
        except PluginError as error:
            LOG.warning("cannot undo %s, whose result cannot be converted: %s; its DEL tries again", call.key, error)

    async def _added(self, route: Route, request: CniAdd, owned: list[Netns], call: Call, asked: Asked) -> "_Added":
        """Call the hook.

        That it begins is recorded first: a daemon that is killed within, and whose runtime never comes back, leaves
        what another daemon can end. So it has a thread of this process, wherever the plugin runs.
        """
        added = _Added()
        if "cni_add" not in route.hooks:
            return added
        host = request.host_netns.identity
        begun = Begun(_key(request), request.netns.path, host=host, asked=asked)

        def around(hook: Hook) -> Hook:
            def add(**arguments: Any) -> Any:
                added.sighting = sight(request.netns)
                self._records.begin(replace(begun, sighting=added.sighting))
                added.result = hook(**arguments)
                if self._records.at_once:
                    with suppress(PluginError):  # what cannot be encoded is taken back
                        stdout = _encode(request, added.result)
                        self.attachments.record(added.attachment(request, host, asked))
                        added.stdout = stdout
                return added.result

            return add

        await self._hook(route, "cni_add", request, owned, call, around)
        return added


@dataclass(slots=True)
class _Added:
    """What an ADD has come to.

    Attributes:
        result: what the hook returned.
        sighting: by what the kernel knows the container's namespace.
        stdout: the answer, when the attachment is recorded; empty before.
    """

    result: Any = None
    sighting: Sighting | None = None
    stdout: bytes = b""

    def attachment(self, request: CniAdd, host: Identity, asked: Asked) -> Attachment:
        """Return what is recorded."""
        key, path = _key(request), request.netns.path
        return Attachment(key, path, self.result, host=host, sighting=self.sighting, asked=asked)


def _encode(request: CniAdd, result: Any) -> bytes:
    try:
        return codec.encode_result(result, request.version)
    except (AttributeError, TypeError, ValueError) as error:
        raise PluginError(
            f"plugin {request.claim!r} returned a CniResult that is no CNI result: {error}; "
            "its addresses must be ipaddress values and its numbers int"
        ) from error


def pod_of_add(request: CniAdd) -> Pod | None:
    """Return the pod that a runtime of kubelet names in CNI_ARGS (CNI conventions, "args")."""
    words = ("NAME", "NAMESPACE", "UID")
    name, namespace, uid = (request.args.get(f"K8S_POD_{one}", "") for one in words)
    return Pod(name, namespace, uid) if name and namespace else None


def _key(request: CniAttachmentRequest) -> Key:
    return Key(request.claim, request.network, request.container_id, request.ifname)
