"""DELs that arrived while the daemon was away.

Owns: the folder into which the entrypoint script writes a DEL that it could not deliver, one frame per file, named by
time; replaying them oldest first, until each has succeeded once.
Refuses: to drop one: a file that cannot be read is set aside as `*.damaged`, one whose DEL fails stays and is tried
again, less and less often. One whose plugin is gone waits for it; the node's next start ends that wait, because then
nothing is left of its container but what a reboot frees anyway.

A replay that comes late must never destroy a fresh attachment, so an ADD first settles the pending DELs of its own
attachment.
"""

import asyncio
import errno
import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.bounded import read_bounded
from nodeplug.cni import codec
from nodeplug.cni.attachments import Key
from nodeplug.errors import PluginError, TryAgain, Undecodable
from nodeplug.frame import HEADER, LIMIT, Frame, Reply
from nodeplug.journal import write_durably

LOG: Final = logging.getLogger(__name__)
_FIRST_RETRY: Final = 2.0
_LAST_RETRY: Final = 300.0
_LEFTOVER_AGE: Final = 600.0
_TRIES_WITHOUT_PLUGIN: Final = 5
"""Replays, about a minute, that a DEL of an earlier boot gets before its plugin counts as gone for good."""
_BOOT_LIMIT: Final = 100
_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Reasons not to read a file that have nothing to do with the file."""
Serve = Callable[[Frame], Awaitable[Reply]]


@dataclass(slots=True)
class _Pending:
    """One file: its frame, what it is about, and how often it has failed."""

    path: Path
    frame: Frame
    key: Key
    failures: int = 0
    due: float = 0.0
    replay: asyncio.Task[str] | None = None
    reason: str = ""


@dataclass(slots=True)
class Spool:
    """The pending DELs of one folder. Used from the event loop alone.

    Attributes:
        folder: where the entrypoint scripts of this node write.
        poll: seconds between two looks: a script may write while the daemon is already up.
        boot_id: of this boot; without one, no DEL is of an earlier boot.
        is_served: whether an enabled plugin serves what was executed under a name.
        damaged: the files that were set aside, or could not be, and are not replayed.
    """

    folder: Path
    poll: float = 2.0
    boot_id: str = ""
    is_served: Callable[[str], bool] = lambda _: True
    damaged: tuple[str, ...] = ()
    _unreadable: dict[str, str] = field(default_factory=dict)
    _earlier: set[str] = field(default_factory=set)
    _pending: dict[str, _Pending] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)

    def prepare(self) -> None:
        """Make the folder, so that a script finds it even when the daemon is away; remove what killed scripts left.

        Raises:
            OSError: it cannot be made.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for leftover in self.folder.glob("*.tmp"):
            with suppress(OSError):
                if time.time() - leftover.stat().st_mtime > _LEFTOVER_AGE:
                    leftover.unlink()
        self._compare_boots()

    def _compare_boots(self) -> None:
        """Tell the DELs that an earlier boot left from those of this one."""
        note = self.folder.with_name(f"{self.folder.name}.boot")
        with suppress(FileNotFoundError, OSError):
            if self.boot_id and read_bounded(note, _BOOT_LIMIT).decode("ascii", "replace") != self.boot_id:
                self._earlier = {path.name for path in self.folder.glob("*.frame")}
        if self.boot_id:
            with suppress(PluginError):  # on a read-only disk: the next start compares with an older boot
                write_durably(note, self.boot_id.encode())

    def count(self) -> int:
        """Return how many DELs are pending."""
        self._scan()
        return len(self._pending)

    def stranded(self) -> list[tuple[Key, str]]:
        """Return the DELs, as last looked at, whose plugin no enabled section serves, each with its last failure."""
        return [(one.key, one.reason) for one in self._pending.values() if not self.is_served(one.frame.name)]

    @property
    def trouble(self) -> str:
        """What somebody has to look at; empty when that is nothing."""
        if not self.damaged:
            return ""
        return (
            f"{len(self.damaged)} deferred DELs cannot be read, such as {self.folder / self.damaged[0]}; the addresses "
            "of their containers stay reserved until GC or a reboot frees them: look at the files, then remove them"
        )

    async def settle(self, key: Key, serve: Serve) -> None:
        """Replay the pending DELs of one attachment now.

        Raises:
            TryAgain: one of them fails, or they cannot be read; an ADD must not go before them.
        """
        unread = self._scan()
        if unread:
            raise TryAgain(f"cannot tell whether a DEL of {key} is pending: {self.folder}: {unread}")
        for pending in [item for item in self._pending.values() if item.key == key]:
            failure = await self._replay(pending, serve)
            if failure:
                raise TryAgain(f"an earlier DEL of {key} is not done yet: {failure}")

    async def run(self, serve: Serve) -> None:
        """Replay what is pending, oldest first, now and whenever there is more; until cancelled."""
        while True:
            await self.replay(serve)
            await asyncio.sleep(self.poll)

    async def replay(self, serve: Serve) -> None:
        """Replay once what is due."""
        self._scan()
        for name in sorted(self._pending):
            pending = self._pending.get(name)
            if pending is not None and pending.due <= time.monotonic():
                await self._replay(pending, serve)

    async def _replay(self, pending: _Pending, serve: Serve) -> str:
        """Run one replay, or join the one that runs; the answer is why it failed, or empty."""
        if pending.replay is None:
            pending.replay = asyncio.create_task(self._attempt(pending, serve), name=f"replay {pending.key}")
        return await asyncio.shield(pending.replay)

    async def _attempt(self, pending: _Pending, serve: Serve) -> str:
        try:
            reply = await serve(pending.frame)
        finally:
            pending.replay = None
        if reply.exit == 0:
            self._pending.pop(pending.path.name, None)
            LOG.info("replayed the spooled DEL of %s", pending.key)
            self._remove(pending.path)
            return ""
        pending.failures += 1
        pending.reason = reply.stdout.decode(errors="replace").strip()
        if self._is_over(pending):
            self._pending.pop(pending.path.name, None)
            LOG.warning("dropped the DEL of %s, of an earlier boot: nothing serves %s", pending.key, pending.frame.name)
            self._remove(pending.path)
            return ""
        delay = min(_FIRST_RETRY * 2 ** (pending.failures - 1), _LAST_RETRY)
        pending.due = time.monotonic() + delay
        LOG.warning("the spooled DEL of %s failed; next try in %g s", pending.key, delay)
        return pending.reason

    def _is_over(self, pending: _Pending) -> bool:
        """Whether a DEL is of an earlier boot, and nobody serves it although every plugin had the time to start."""
        over = pending.path.name in self._earlier and pending.failures >= _TRIES_WITHOUT_PLUGIN
        return over and not self.is_served(pending.frame.name)

    def _remove(self, path: Path) -> None:
        """Remove a file whose DEL is done. One that stays must not be replayed: its container may be back by then."""
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            if path.name not in self._done:
                LOG.warning("cannot remove %s, whose DEL is done: %s", path, error.strerror)
            self._done.add(path.name)
        else:
            self._done.discard(path.name)

    def _scan(self) -> str:
        """Learn what is in the folder. An empty one costs one readdir, so an ADD can afford it.

        Returns:
            Why it could not be read this time, or nothing; what is known of it stays known.
        """
        try:
            there = list(self.folder.iterdir())
            found = {path.name: path for path in there if path.suffix == ".frame"}
            self._unreadable = {name: why for name, why in self._unreadable.items() if name in found}
            for gone in self._pending.keys() - found.keys():
                del self._pending[gone]
            for name in sorted(found.keys() & self._done):
                self._remove(found.pop(name))
            for name in sorted(found.keys() - self._pending.keys()):
                self._take(found[name])
            aside = [path.name for path in there if path.suffix == ".damaged"]
            self.damaged = tuple(sorted([*aside, *self._unreadable]))
        except (FileNotFoundError, NotADirectoryError):
            self._pending.clear()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _take(self, path: Path) -> None:
        try:
            frame = Frame.decode(read_bounded(path, HEADER.size + LIMIT))
            if codec.is_void(frame):
                self._remove(path)
                return
            self._pending[path.name] = _Pending(path, frame, _key(frame))
        except OSError as error:
            if error.errno in _PASSING:
                raise
            self._set_aside(path, error.strerror or str(error))
        except PluginError as error:
            self._set_aside(path, str(error))

    def _set_aside(self, path: Path, reason: str) -> None:
        """Give a file that is no DEL another name; where the disk refuses that, it is left out, and said once."""
        if self._unreadable.get(path.name) == reason:
            return
        LOG.error("the spooled %s is set aside: %s", path, reason)
        try:
            path.rename(path.with_suffix(".damaged"))
        except OSError:
            self._unreadable[path.name] = reason
        else:
            self._unreadable.pop(path.name, None)


def _key(frame: Frame) -> Key:
    if frame.style != "cni" or frame.env.get("CNI_COMMAND") != "DEL":
        raise Undecodable("it is no DEL of CNI")
    return Key(frame.name, *codec.attachment_of(frame))
