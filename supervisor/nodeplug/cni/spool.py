"""DELs that arrived while the daemon was down.

Owns: which DELs that entrypoints could not deliver are pending (one frame per file, named by time), and replaying them,
oldest first, until each has succeeded once.
Refuses: files (`spool_folder` handles them, on a lane beside the loop), and to drop a DEL. An unreadable file is set
aside as `*.damaged`; a failing DEL stays and is retried at growing intervals. A DEL whose plugin is gone waits for it
until the node reboots, which frees whatever its container still had.

A late replay must never destroy a new attachment, so an ADD first replays the pending DELs of its own attachment.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.cni import spool_folder
from nodeplug.cni.attachments import Key
from nodeplug.cni.spool_folder import Deferred, Sight
from nodeplug.cni.spool_watch import SpoolWatch
from nodeplug.contract.errors import TryAgain
from nodeplug.exec.frame import Frame, Reply
from nodeplug.process.lane import Lane, Unanswered
from nodeplug.process.turns import on_the_loop

LOG: Final = logging.getLogger(__name__)
_FIRST_RETRY: Final = 2.0
_LAST_RETRY: Final = 300.0
_TRIES_WITHOUT_PLUGIN: Final = 5
"""Replays (about a minute) of a DEL of an earlier boot before its plugin counts as removed."""
Serve = Callable[[Frame], Awaitable[Reply]]


@dataclass(slots=True)
class _Pending:
    """A deferred DEL, and how often it has failed."""

    deferred: Deferred
    failures: int = 0
    due: float = 0.0
    replay: asyncio.Task[str] | None = None
    reason: str = ""

    @property
    def key(self) -> Key:
        return self.deferred.key

    @property
    def name(self) -> str:
        return self.deferred.path.name


@dataclass(slots=True)
class Spool:
    """The pending DELs of one folder. Event loop only.

    Attributes:
        folder: where the entrypoints of this node write.
        poll: seconds between two checks: an entrypoint may write while the daemon is already up.
        boot_id: of this boot; without one, no DEL counts as from an earlier boot.
        is_served: whether an enabled plugin serves an executable of this name.
        damaged: files that are not replayed: set aside, or impossible to set aside.
    """

    folder: Path
    poll: float = 2.0
    boot_id: str = ""
    is_served: Callable[[str], bool] = lambda _: True
    damaged: tuple[str, ...] = ()
    _unreadable: dict[str, str] = field(default_factory=dict)
    _earlier: set[str] = field(default_factory=set)
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _done: dict[str, str] = field(default_factory=dict)
    _lane: Lane = field(default_factory=lambda: Lane("the folder of deferred DELs"))
    _watch: SpoolWatch = field(init=False)
    _looks: int = 0
    _is_current: bool = False
    """Whether what is known was the whole folder when it was read last, with nothing reading it since."""

    def __post_init__(self) -> None:
        self._watch = SpoolWatch(self.folder)

    def prepare(self) -> None:
        """Create the folder, and find the DELs of an earlier boot. Call it first, off the loop; raises OSError."""
        spool_folder.prepare(self.folder)
        self._earlier = spool_folder.of_earlier_boot(self.folder, self.boot_id)

    def count(self) -> int:
        """Return how many DELs were pending at the last check."""
        return len(self._pending)

    def stranded(self) -> list[tuple[Key, str]]:
        """Return the DELs at the last check that no enabled section serves, each with its last failure."""
        served = self.is_served
        return [(one.key, one.reason) for one in self._pending.values() if not served(one.deferred.frame.name)]

    @property
    def trouble(self) -> str:
        """What needs attention; empty if nothing does."""
        if self._lane.stuck:
            return f"{self._lane.stuck}: pods start again when it does ({self.folder})"
        if not self.damaged:
            return ""
        return (
            f"{len(self.damaged)} deferred DELs cannot be read, such as {self.folder / self.damaged[0]}; the addresses "
            "of their containers stay reserved until GC or a reboot frees them: look at the files, then remove them"
        )

    async def settle(self, key: Key, serve: Serve) -> None:
        """Replay the pending DELs of one attachment before its ADD.

        Raises:
            TryAgain: one of them fails, or they cannot be read.
        """
        unread = "" if self._is_current and not self._watch.has_changed() else await self.look()
        if unread:
            raise TryAgain(f"cannot tell whether a DEL of {key} is pending: {self.folder}: {unread}")
        for pending in [item for item in self._pending.values() if item.key == key]:
            failure = await self._replay(pending, serve)
            if failure:
                raise TryAgain(f"an earlier DEL of {key} is still pending: {failure}")

    async def run(self, serve: Serve) -> None:
        """Replay what is pending, oldest first, until cancelled."""
        self._watch.open()
        try:
            while True:
                await self.replay(serve)
                await asyncio.sleep(self.poll)
        finally:
            self._watch.close()

    async def replay(self, serve: Serve) -> None:
        """Replay every DEL whose retry time has come."""
        await self.look()
        for name in sorted(self._pending):
            pending = self._pending.get(name)
            if pending is not None and pending.due <= time.monotonic():
                await self._replay(pending, serve)

    async def _replay(self, pending: _Pending, serve: Serve) -> str:
        """Run one replay, or join one in progress; return why it failed, or an empty string."""
        await on_the_loop()
        if pending.replay is None:
            pending.replay = asyncio.create_task(self._attempt(pending, serve), name=f"replay {pending.key}")
        return await asyncio.shield(pending.replay)

    async def _attempt(self, pending: _Pending, serve: Serve) -> str:
        try:
            reply = await serve(pending.deferred.frame)
        finally:
            pending.replay = None
        if reply.exit == 0:
            LOG.info("replayed the spooled DEL of %s", pending.key)
            return await self._finish(pending)
        pending.failures += 1
        pending.reason = reply.stdout.decode(errors="replace").strip()
        if self._is_over(pending):
            name = pending.deferred.frame.name
            LOG.warning("dropped the DEL of %s, of an earlier boot: nothing serves %s", pending.key, name)
            return await self._finish(pending)
        delay = min(_FIRST_RETRY * 2 ** (pending.failures - 1), _LAST_RETRY)
        pending.due = time.monotonic() + delay
        LOG.warning("the spooled DEL of %s failed; next try in %g s", pending.key, delay)
        return pending.reason

    def _is_over(self, pending: _Pending) -> bool:
        """Whether a DEL is from an earlier boot, and no plugin serves it although all had time to start."""
        over = pending.name in self._earlier and pending.failures >= _TRIES_WITHOUT_PLUGIN
        return over and not self.is_served(pending.deferred.frame.name)

    async def _finish(self, pending: _Pending) -> str:
        """Remove the file of a finished DEL. If it stays, it is not replayed: its container may be back.

        Return why the removal is uncertain, or an empty string: a later daemon would replay the DEL.
        """
        self._pending.pop(pending.name, None)
        self._done.setdefault(pending.name, "")
        return await self.look()

    async def look(self) -> str:
        """Read the folder, and remove finished DELs; return why it could not be read, or an empty string."""
        known, done, unreadable = frozenset(self._pending), frozenset(self._done), dict(self._unreadable)
        self._looks, self._is_current = self._looks + 1, False
        this = self._looks
        self._watch.has_changed()  # what has changed by now, this look sees

        def work() -> Sight:
            self._watch.arm()
            return spool_folder.look(self.folder, known, done, unreadable)

        try:
            sight = await self._lane.run(work)
        except Unanswered as error:
            return str(error)
        self._learn(sight)
        self._is_current = this == self._looks and not sight.failure
        return sight.failure

    def _learn(self, sight: Sight) -> None:
        """Apply what a check found, except where this object has changed since."""
        for deferred in sight.fresh:
            name = deferred.path.name
            if name not in self._pending and name not in self._done:
                self._pending[name] = _Pending(deferred)
        if sight.failure:
            return
        for name in self._pending.keys() - sight.names:
            del self._pending[name]
        for name, reason in sight.staying.items():
            if self._done.get(name) != reason:
                LOG.warning("cannot remove %s, whose DEL is done: %s", self.folder / name, reason)
            self._done[name] = reason
        for name in self._done.keys() - sight.staying.keys() - sight.names:
            del self._done[name]
        self._unreadable = sight.unreadable
        self.damaged = tuple(sorted(sight.aside | sight.unreadable.keys()))
