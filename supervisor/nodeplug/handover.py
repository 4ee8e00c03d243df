"""Handing the node over from a running daemon to one with the code that is installed now.

Owns: the order of the steps on both sides, and what is done when the other side fails:

    predecessor                              successor
    starts the successor, goes on serving    loads every plugin to see whether it can; registers lists and drivers
    lets callers wait, calls end             waits; kubelet asks it for devices, and waits too
    stops its plugins, hands over            starts its plugins, recovers, serves
    ends, but not its streams to kubelet     keeps those open until kubelet closes them

So the journal has one owner at each instant, callers wait in the backlog of one socket, and kubelet always has a list.
Kubelet knows plugins by resource (1.36 too): the end of the predecessor's stream would disconnect the successor.
Until the hand-over the predecessor can go on as if nothing had happened, and does so when anything goes wrong.
Refuses: the words and the socket between the two (`process/succession`), and to end calls: it waits, or gives up.
"""

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from nodeplug.contract.errors import NotSupported, PluginError, TryAgain
from nodeplug.device.resources import Resources
from nodeplug.dra.section import DynamicResources
from nodeplug.exec.frame import Reply
from nodeplug.exec.server import ExecServer
from nodeplug.extender.section import Extending
from nodeplug.hosting.kept_sockets import SocketsBySection
from nodeplug.hosting.registry import Registry
from nodeplug.process import notify, standby
from nodeplug.process.aside import aside
from nodeplug.process.succession import Kept, Successor, accepted
from nodeplug.volumes.service import Volumes

LOG: Final = logging.getLogger(__name__)
READY: Final = 120.0
"""Seconds that a successor has to load its code and every plugin."""
REGISTERED: Final = 15.0
"""Seconds that it has then to let kubelet register the last known lists."""
SERVING: Final = 90.0
"""Seconds that it has to start its plugins and recover."""
ANSWERED: Final = 110.0
"""Seconds for what kubelet has asked the predecessor after all: as long as a plugin that starts may let it wait."""
CLAIMS: Final = 15.0
"""Seconds for requests about claims to end, before kubelet learns of the successor."""
QUIET: Final = 3.0
"""Seconds for which callers wait for the calls of others to end: less than their own patience with a silent daemon."""
PAUSE: Final = 1.0
TRIES: Final = 10
_POLLS: Final = frozenset({"ListDevices", "health", "metrics", "inspect"})
"""Calls that nobody waits for, and that leave nothing behind."""


@dataclass(slots=True)
class Handover:
    """The predecessor's side. Used only from the event loop.

    Attributes:
        command: the words after `nodeplug` that start a daemon like this one.
        server: where callers come in.
        registry: knows the calls inside plugins.
        resources: what kubelet is served.
        claims: of devices, which kubelet has prepared.
        volumes: knows the requests about volumes, also between two hooks.
        extender: where kube-scheduler comes in.
        sockets: those that plugins keep.
        stop: set when this daemon is to end.
        stands_by: it was started with `--take-over`: it gives its place to another one that was, and does not end
            then, but waits for that one's end, to serve again.
        decided: it ends because a successor takes over.
        kept: connections that predecessors left.
    """

    command: Sequence[str]
    server: ExecServer
    registry: Registry
    resources: Resources
    claims: DynamicResources
    volumes: Volumes
    extender: Extending
    sockets: SocketsBySection
    stop: asyncio.Event
    stands_by: bool = False
    decided: bool = False
    kept: Kept = field(default_factory=Kept)
    _successor: Successor | None = field(default=None)
    _replacing: bool = False
    _takes_sockets: bool = False
    _yielding: asyncio.Task[None] | None = None

    async def replace(self) -> dict[str, Any]:
        """Have this daemon replaced, and return the process ids once that is decided.

        Raises:
            TryAgain: it is not, and this daemon goes on; the message says why.
        """
        if self._replacing:
            raise TryAgain("another process is about to take over already")
        self._replacing = True
        try:
            self._successor = successor = await Successor.start(self.command)
        except BaseException:
            self._replacing = False
            raise
        LOG.info("process %d is started to take over", successor.pid)
        return await self._give(successor)

    async def yield_to(self, descriptor: int, pid: int) -> Reply:
        """Begin to give this daemon's place to one that was started elsewhere, as in a pod that replaces this one's.

        Args:
            descriptor: of a socket to it; owned.
            pid: its process.

        Raises:
            NotSupported: this daemon was not started to be replaced so.
            TryAgain: it ends, or is being replaced already.
        """
        try:
            if not self.stands_by:
                raise NotSupported(
                    "it was started without --take-over, as by systemd, which would start it again; stop it there first"
                )
            if self._replacing or self.stop.is_set():
                raise TryAgain("it ends, or is being replaced already")
        except PluginError:
            os.close(descriptor)
            raise
        self._successor = successor = Successor.beside(pid, descriptor)
        self._replacing = True
        LOG.info("process %d asks to take over", pid)
        self._yielding = asyncio.create_task(self._yield(successor), name="give the place away")
        return Reply(0, json.dumps({"pid": os.getpid()}).encode())

    async def _yield(self, successor: Successor) -> None:
        with suppress(PluginError):  # it is in the log, and told to the other one
            await self._give(successor)

    async def _give(self, successor: Successor) -> dict[str, Any]:
        """Follow the steps up to the decision, and return the process ids; raises TryAgain as `replace` does."""
        known = False
        try:
            self._compare((await successor.word("loaded", READY))["refused"])
            await self._wait_for_claims(successor)
            successor.let_register()
            LOG.info("process %d may register, and takes over when calls have ended", successor.pid)
            known = True
            ready = await successor.word("ready", REGISTERED)
            self._takes_sockets = ready.get("sockets") is True  # one of an earlier release may have been installed
            await self._wait_for_quiet(successor)
        except BaseException as error:
            LOG.error("this daemon goes on, process %d does not take over: %s", successor.pid, error)
            self._go_on(known, str(error))
            raise
        self.decided = True
        self.resources.outlive_plugins()
        self.stop.set()
        return {"pid": os.getpid(), "successor": successor.pid}

    def _go_on(self, known: bool, why: str) -> None:
        """Take no notice of a successor that has failed; register again if kubelet may have known it."""
        if self._successor is not None:
            self._successor.dismiss(why)
        self._successor, self._replacing = None, False
        self._resume()
        if known:
            self.resources.register_again("a daemon that was to take over has failed")

    def _compare(self, refused: Mapping[str, str]) -> None:
        """Refuse a successor that cannot load what runs here."""
        worse = [name for name in refused if name in self.registry.plugins]
        if worse:
            raise TryAgain(f"the code that is installed now cannot load what runs: {refused[worse[0]]}")

    async def _wait_for_claims(self, successor: Successor) -> None:
        """Wait until no request about claims is inside.

        Kubelet asks the successor as soon as it knows it, and all that it asks would wait for one that hangs here.

        Raises:
            TryAgain: requests do not end; or nobody is there any more to take over.
        """
        until = time.monotonic() + CLAIMS
        while inside := self.claims.inside:
            successor.check()
            if time.monotonic() > until:
                what = ", ".join(inside[:3])
                raise TryAgain(f"requests about claims did not end within {CLAIMS:g} s: {what}; ask again later")
            await asyncio.sleep(0.02)

    async def _wait_for_quiet(self, successor: Successor) -> None:
        """Let new callers wait until no call is inside; let them in again from time to time if that takes long.

        Raises:
            TryAgain: calls do not end; or nobody is there any more to take over.
        """
        for _ in range(TRIES):
            until = time.monotonic() + QUIET
            quiet = await self.server.pause(QUIET)
            self.extender.hold()
            self.volumes.hold()  # CSI calls come on sockets of their own; kubelet repeats what is refused
            while quiet and self._busy() and time.monotonic() < until:  # noqa: ASYNC110 - kubelet's calls, once in a while
                await asyncio.sleep(0.02)
            successor.check()
            if quiet and not self._busy():
                return
            self._resume()
            await asyncio.sleep(PAUSE)
        what = ", ".join(self._busy()[:3]) or "callers that do not finish their requests"
        raise TryAgain(f"calls did not end within {TRIES * QUIET:g} s: {what}; ask again later")

    def _busy(self) -> list[str]:
        hooks = [call for call, _ in self.registry.calls if call.verb not in _POLLS]
        calls = {call.id: call for call in (*hooks, *self.volumes.inside)}
        asked = self.resources.asked + self.claims.asked
        devices = [f"{asked} requests about devices"] * bool(asked)
        return [*(f"{call.verb} of {call.claim}" for call in calls.values()), *devices]

    def _resume(self) -> None:
        self.server.resume()
        self.volumes.release()
        self.extender.release()

    async def _answer_the_last(self, sockets: Mapping[str, str]) -> None:
        """Let the successor answer what kubelet has asked here since the decision; it had begun before it knew both."""
        self.resources.move(sockets)
        until = time.monotonic() + ANSWERED
        while self.resources.asked and time.monotonic() < until:  # noqa: ASYNC110 - once in a while, for a moment
            await asyncio.sleep(0.02)

    async def leave(self, listener: socket.socket) -> int:
        """Give the node to the successor, and end this process once that serves; return the exit status if it does not.

        One that fails now leaves a node without a daemon: systemd starts the next one, and callers wait for that.
        """
        assert self._successor is not None  # noqa: S101 - it was decided
        successor = self._successor
        # Systemd takes signs of life from the main process alone, which this one is until the successor serves.
        living = asyncio.create_task(notify.keep_alive(), name="watchdog until the end")
        try:
            if self._takes_sockets:
                await successor.leave(self.sockets.lend())
            await successor.hand_over(listener)
            serving = await successor.word("serving", SERVING)
        except TryAgain as error:
            LOG.error("no daemon serves this node now: %s", error)
            successor.kill()
            return 1
        finally:
            living.cancel()
            listener.close()
        if not await notify.insist(f"MAINPID={successor.pid}"):
            LOG.error("systemd does not take that process %d is the daemon now, and may end it", successor.pid)
        await self._answer_the_last(serving.get("devices", {}))
        LOG.info("process %d has taken over", successor.pid)
        names = self.resources.socket_names()
        successor.bequeath([*await aside(partial(accepted, names), "connections"), *self.kept.descriptors])
        # An orderly end would tell kubelet that its streams end. The successor removes the sockets.
        if self.stands_by:
            standby.become(successor.process, [sys.executable, "-P", "-m", "nodeplug", *self.command])
        os._exit(0)  # noqa: TID251 - nothing is left to be done here: the node belongs to another process
