"""DELs that arrived while the daemon was away.

Owns: the folder into which the entrypoint script writes a DEL that it could not deliver, one frame per file, named by
time; replaying them oldest first, until each has succeeded once.
Refuses: to drop one: a file that cannot be read is set aside as `*.damaged`, one whose DEL fails stays and is tried
again, less and less often.

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

from nodeplug.cni import codec
from nodeplug.cni.attachments import Key
from nodeplug.errors import PluginError, TryAgain, Undecodable
from nodeplug.frame import Frame, Reply

LOG: Final = logging.getLogger(__name__)
_FIRST_RETRY: Final = 2.0
_LAST_RETRY: Final = 300.0
_LEFTOVER_AGE: Final = 600.0
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


@dataclass(slots=True)
class Spool:
    """The pending DELs of one folder. Used from the event loop alone.

    Attributes:
        folder: where the entrypoint scripts of this node write.
        poll: seconds between two looks: a script may write while the daemon is already up.
    """

    folder: Path
    poll: float = 2.0
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

    def count(self) -> int:
        """Return how many DELs are pending."""
        self._scan()
        return len(self._pending)

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
        delay = min(_FIRST_RETRY * 2 ** (pending.failures - 1), _LAST_RETRY)
        pending.due = time.monotonic() + delay
        LOG.warning("the spooled DEL of %s failed; next try in %g s", pending.key, delay)
        return reply.stdout.decode(errors="replace").strip()

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
            found = {path.name: path for path in self.folder.iterdir() if path.suffix == ".frame"}
            for gone in self._pending.keys() - found.keys():
                del self._pending[gone]
            for name in sorted(found.keys() & self._done):
                self._remove(found.pop(name))
            for name in sorted(found.keys() - self._pending.keys()):
                self._take(found[name])
        except (FileNotFoundError, NotADirectoryError):
            self._pending.clear()
        except OSError as error:
            return error.strerror or str(error)
        return ""

    def _take(self, path: Path) -> None:
        try:
            frame = Frame.decode(path.read_bytes())
            self._pending[path.name] = _Pending(path, frame, _key(frame))
        except OSError as error:
            if error.errno in _PASSING:
                raise
            LOG.warning("cannot read the spooled %s: %s", path, error.strerror)
        except PluginError as error:
            LOG.error("set the spooled %s aside: %s", path, error)
            with suppress(OSError):
                path.rename(path.with_suffix(".damaged"))


def _key(frame: Frame) -> Key:
    if frame.style != "cni" or frame.env.get("CNI_COMMAND") != "DEL":
        raise Undecodable("it is no DEL of CNI")
    return Key(frame.name, *codec.attachment_of(frame))
