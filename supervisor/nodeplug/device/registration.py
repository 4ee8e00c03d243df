"""Keeping one resource registered with kubelet, whatever happens to either side.

Owns: the reasons to register again, and the pace of retries.
Refuses: device lists (it waits for the first one), kubelet's folders and socket (`kubelet` knows them), giving up: it
ends by cancellation alone.

Level, not edge: inotify, streams and timers only make `run` look again. It compares what is there with what it
registered with, so a lost or duplicate event costs one poll at most.
"""

import asyncio
import logging
import time
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import grpc

from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.device.binding import Binding
from nodeplug.device.caller import Caller
from nodeplug.device.codec import encode_options
from nodeplug.device.folder_watch import FolderWatch
from nodeplug.device.kubelet import Identity, KubeletFolders, KubeletSocket, Mode, PluginWatcherFolder, Target
from nodeplug.device.server import ResourceServer
from nodeplug.device.snapshots import Snapshots
from nodeplug.device.sockets import remove_dead_sockets, socket_path
from nodeplug.hosting.call import Call
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.process.lane import Unanswered
from nodeplug.process.private_socket import check_socket_path

LOG: Final = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 30.0
_HANGS: Final = "kubelet's folder does not answer"
_MOST_DISCONNECTIONS: Final = 10
_SILENCE: Final = 1.0
"""Seconds without a stream after which kubelet is considered gone: it opens one right after a registration."""


@dataclass(slots=True)
class Retry:
    """The pause before the next attempt: doubles from 50 ms to 30 s, starts over after a success."""

    failures: int = 0

    def pause(self) -> float:
        """Return the seconds to wait now, and count the failure."""
        self.failures += 1
        return min(_FIRST_PAUSE * 2.0 ** (self.failures - 1), _LONGEST_PAUSE)

    def succeeded(self) -> None:
        """Start over."""
        self.failures = 0


@dataclass(frozen=True, slots=True)
class _Loss:
    """Why a registration no longer holds.

    Attributes:
        at_once: the next attempt needs no pause.
        kubelets: kubelet is gone, or does not listen; otherwise the registration was given up here.
    """

    reason: str
    at_once: bool = False
    kubelets: bool = False


@dataclass(slots=True)
class Registration:
    """Keeps one resource registered, in one mode.

    Attributes:
        registered: kubelet has accepted the current server.
        error: why not, or what happened last; empty when all is well.
        server: the current server.
        registrations: how many times kubelet accepted.
    """

    binding: Binding
    runner: Caller
    snapshots: Snapshots
    folders: KubeletFolders
    mode: Mode = "register"
    poll: float = 1.0
    watchdog: float = 10.0
    registered: bool = False
    error: str = ""
    server: ResourceServer | None = None
    registrations: int = 0
    _look: asyncio.Event = field(default_factory=asyncio.Event)
    _retry: Retry = field(default_factory=Retry)
    _said: str = ""
    _untrue: str = ""
    _hurried_until: float = 0.0
    _disconnections: int = 0
    _silent_since: float | None = None
    _target: Target = field(init=False)
    _watch: FolderWatch | None = None
    _options: pb.DevicePluginOptions = field(default_factory=pb.DevicePluginOptions)

    def __post_init__(self) -> None:
        folder = self.folders.folder(self.mode)
        self._target = KubeletSocket(folder) if self.mode == "register" else PluginWatcherFolder(folder)
        check_socket_path(socket_path(folder, self.binding.resource))

    @property
    def away(self) -> str:
        """Since when a kubelet that accepted the server has not been listening; empty while one listens."""
        silent = self.registered and self._silent_since is not None and time.time() - self._silent_since >= _SILENCE
        return f"{self._away()}: no stream is open" if silent else ""

    def _away(self) -> str:
        since = datetime.fromtimestamp(self._silent_since or time.time()).astimezone()
        return f"kubelet has been away since {since.isoformat(sep=' ', timespec='seconds')}"

    def look(self) -> None:
        """Look again at once whether the registration still holds."""
        self._look.set()

    def doubt(self, reason: str) -> None:
        """Register again at once, for a reason that cannot be seen from here."""
        self._untrue = reason
        self._look.set()

    def hurry(self, seconds: float) -> None:
        """For `seconds`, register again at once when kubelet ends its ListAndWatch stream or opens none.

        Some kubelets know a plugin by its resource (server.runClient), and disconnect its successor when the stream of
        the one before ends.
        """
        self._hurried_until = max(self._hurried_until, time.monotonic() + seconds)
        self._disconnections = 0
        self._look.set()

    async def run(self) -> None:
        """Register, and again whenever that is lost, until cancelled; server and socket are gone then."""
        await self.snapshots.after(0, lambda: False)
        self._watch = FolderWatch(self._target.folder)
        async with self._watch.waking(self._look):
            while True:
                try:
                    await self.folders.lane.run(self.folders.sweep)
                    while True:
                        await self._register_when_there()
                except Unanswered as error:
                    self._hangs(error)
                    await self._wait(self.poll)

    async def _register_when_there(self) -> None:
        """Register if kubelet is there, and wait until there is a reason to look again."""
        identity = await self._present()
        if identity is None:
            absent = self._target.absent
            self._say(absent if self._silent_since is None else f"{self._away()}: {absent}")
            self._retry.succeeded()
            await self._wait(self.poll)
        elif not await self._register_once(identity):
            await self._pause(identity)

    async def _present(self) -> Identity | None:
        """Return which kubelet is there, and watch for changes."""
        return await self.folders.lane.run(self._watched)

    def _watched(self) -> Identity | None:
        if self._watch is not None:
            self._watch.arm()
        return self._target.identity()

    async def _register_once(self, identity: Identity) -> bool:
        """Serve on a fresh socket until the registration is lost; return whether to go on at once."""
        path = socket_path(self._target.folder, self.binding.resource)
        watched = self.mode == "watcher"
        self._options, self._untrue = encode_options(self.binding.route.hooks), ""
        self.server = server = ResourceServer(
            self.binding, self.runner, self.snapshots, path, self.folders.lane, changed=self._look.set, watched=watched
        )
        try:
            await _to_the_end(server.start())
            await self._announce(server, identity)
            return await self._hold(server, identity)
        except Unanswered:
            raise
        except PluginError as error:
            gone = self._silent_since is not None and grpc.StatusCode.UNAVAILABLE.name in error.message
            self._say(f"{self._away()}: {error.message}" if gone else error.message)
            return False
        finally:
            self.registered = False
            self.server = None
            await _to_the_end(server.stop())

    async def _announce(self, server: ResourceServer, identity: Identity) -> None:
        """Announce the server; give up as soon as that has become pointless.

        Kubelet blocks for 10 s when it dials back and our socket has vanished meanwhile.

        Raises:
            TryAgain: kubelet refused, or the registration was lost before it was made.
        """
        call = self._call(server)
        announcing = asyncio.create_task(
            self._target.announce(server, self.binding), name=f"announce {server.path.name}"
        )
        announcing.add_done_callback(lambda _: self._look.set())
        try:
            while not announcing.done():
                seen = await self._see(server)
                loss = self._loss(identity, seen, 0.0)
                if loss is not None and not announcing.done():
                    raise TryAgain(f"{loss.reason}; registering again")
                await self._wait(self.poll)
            await announcing
        except PluginError as error:
            self.runner.finished(call, error)
            raise
        finally:
            announcing.cancel()
            await asyncio.wait([announcing])
        if self.mode == "register":  # the plugin watcher has not answered yet
            self.runner.finished(call, None)

    def _call(self, server: ResourceServer) -> Call:
        return Call("Register", self.binding.claim, server.path.name)

    async def _hold(self, server: ResourceServer, identity: Identity) -> bool:
        """Wait until the registration is lost; return whether the next attempt needs no pause."""
        if self.mode == "register":
            self._accepted(server)
        idle_since = streaming_since = time.monotonic()
        opened = 0
        while True:
            seen = await self._see(server)  # before the streams: one may open meanwhile
            now = time.monotonic()
            if server.verdict is not None:
                self._take_verdict(server)
                idle_since = now  # the plugin watcher listens after it has accepted
            if server.streams.open:
                idle_since, self._silent_since = now, None
                if now - streaming_since >= self.watchdog:
                    self._retry.succeeded()
            else:
                await self._sweep_watched(has_ended=server.streams.opened > opened)
                opened = server.streams.opened
                streaming_since, self._silent_since = now, self._silent_since or time.time()
            idle = now - idle_since
            loss = self._loss(identity, seen, idle)
            there = seen is not None and seen[0] == identity
            loss = loss or self._find_disconnection(server, idle, there)
            if loss is not None:
                if server.streams.open and not loss.kubelets:
                    self.hurry(self.watchdog)  # kubelet may disconnect the next server when this stream ends
                if loss.kubelets:  # a killed one's stream can seem open for longer than its socket exists
                    self._silent_since = self._silent_since or time.time()
                self._say(f"{loss.reason}; registering again")
                if loss.at_once:
                    self._retry.succeeded()
                return loss.at_once
            await self._wait(min(self.poll, self.watchdog))

    def _find_disconnection(self, server: ResourceServer, idle: float, there: bool) -> _Loss | None:
        """Return why the registration is lost, if kubelet closed it when an earlier stream ended, else None.

        It then ends the stream that it has just opened, or opens none. Either may have another reason: a list that it
        cannot take, so the number is limited; or a busy node, so the second is concluded once. Of a kubelet that is not
        `there` nothing is concluded.
        """
        if server.streams.open or not self.registered or not there or time.monotonic() >= self._hurried_until:
            return None
        streamed = server.streams.opened > 0  # also if it ended before anybody looked
        if self._disconnections >= (_MOST_DISCONNECTIONS if streamed else 1) or not (streamed or idle >= _SILENCE):
            return None
        self._disconnections += 1
        return _Loss("kubelet disconnected this server when an earlier stream ended", at_once=True)

    async def _sweep_watched(self, *, has_ended: bool) -> None:
        """Remove what earlier daemons left to the plugin watcher when kubelet's stream has ended anyway."""
        if has_ended and self.mode == "watcher":
            with suppress(Unanswered):
                await self.folders.lane.run(lambda: remove_dead_sockets(self._target.folder, self.binding.resource))

    async def _see(self, server: ResourceServer) -> tuple[Identity | None, bool] | None:
        """Return which kubelet is there, and whether our socket is; None while the folder does not answer."""
        try:
            seen = await self.folders.lane.run(lambda: (self._watched(), server.path.exists()))
        except Unanswered as error:  # what kubelet has registered, it keeps
            self._hangs(error)
            return None
        if self._said == _HANGS:
            self.error = self._said = ""
        return seen

    def _loss(self, identity: Identity, seen: tuple[Identity | None, bool] | None, idle: float) -> _Loss | None:
        """Return why the registration no longer holds; None while it may hold."""
        if self._untrue:
            return _Loss(self._untrue, at_once=True)
        if seen is None:
            return None
        present, ours = seen
        if present is not None and present != identity:
            return _Loss("kubelet's socket is a new one", at_once=True, kubelets=True)
        if not ours:
            return _Loss("our socket was removed")
        # Kubelet asks for the options when a plugin registers and never again, so only a change of them costs a stream.
        # A second server next to this one would not save it, since some kubelets take the late end of the old stream
        # for the end of the resource.
        if encode_options(self.binding.route.hooks) != self._options:
            return _Loss("its plugin has different hooks after a reload", at_once=True)
        if self.registered and present is not None and idle >= self.watchdog:
            return _Loss(f"kubelet has not listened for {self.watchdog:g} s", kubelets=True)
        return None

    def _take_verdict(self, server: ResourceServer) -> None:
        verdict, server.verdict = server.verdict, None
        if verdict is None:
            return
        if verdict.plugin_registered:
            self._accepted(server)
            self.runner.finished(self._call(server), None)
        else:
            self.registered = False
            self._say(f"kubelet's plugin watcher refused it: {verdict.error}")
            self.runner.finished(self._call(server), TryAgain(self.error))

    def _accepted(self, server: ResourceServer) -> None:
        self.registered = True
        self.registrations += 1
        self.error = self._said = ""
        LOG.info("%s is registered with kubelet on %s", self.binding.resource, server.path.name)

    def _say(self, what: str, state: str = "") -> None:
        """Log a state once, however many attempts it lasts, and even if its text contains a changing duration."""
        self.error = what
        if self._said != (state or what):
            self._said = state or what
            LOG.warning("%s: %s", self.binding.resource, what)

    def _hangs(self, error: Unanswered) -> None:
        self._say(f"{error.message}; check the filesystem of {self._target.folder}", _HANGS)

    async def _pause(self, identity: Identity) -> None:
        """Wait before the next attempt; a new kubelet cuts it short."""
        until = time.monotonic() + self._retry.pause()
        while (left := until - time.monotonic()) > 0:
            if await self._present() != identity:
                self._retry.succeeded()
                return
            await self._wait(min(left, self.poll))

    async def _wait(self, seconds: float) -> None:
        """Wait until something happens, or for `seconds`."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._look.wait()
        self._look.clear()


async def _to_the_end(work: Coroutine[Any, Any, None]) -> None:
    """Wait for work that must not stop half-way, even when the waiter is cancelled: that takes effect afterwards."""
    task = asyncio.create_task(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        raise
