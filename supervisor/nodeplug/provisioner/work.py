"""Pieces of work about objects of the cluster: one at a time for each, again after a failure, a few at once.

Owns: pauses between tries, which grow, and who is told of a failure: only when its text is new.
Refuses: to know what the work is.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import PluginError, clip
from nodeplug.kubeapi.client import Bounds
from nodeplug.kubeapi.watch import Pauses

LOG: Final = logging.getLogger(__name__)
AT_ONCE: Final = 4
SETTLING: Final = 3.0
"""Seconds after success in which the cluster may not have told us of it yet."""
_PAUSES: Final = Bounds(pause=1.0, longest_pause=60.0)


@dataclass(slots=True)
class _Piece:
    pauses: Pauses = field(default_factory=lambda: Pauses(_PAUSES))
    not_before: float = 0.0
    running: bool = False
    problem: str = ""


class Work:
    """All pieces; event loop only.

    Args:
        group: where they run.
        changed: is set when one may be due again.
        done: is set when one has succeeded.
    """

    def __init__(self, group: asyncio.TaskGroup, changed: asyncio.Event, done: asyncio.Event) -> None:
        self._group, self._changed, self._done = group, changed, done
        self._places = asyncio.Semaphore(AT_ONCE)
        self._pieces: dict[str, _Piece] = {}

    @property
    def problems(self) -> Mapping[str, str]:
        """What fails at present, by key."""
        return {key: one.problem for key, one in self._pieces.items() if one.problem}

    def forget_others(self, keys: set[str]) -> None:
        """Forget what is no longer to be done; its pauses are kept for a while, since it may come back."""
        now = asyncio.get_running_loop().time()
        for key, one in tuple(self._pieces.items()):
            if key in keys or one.running:
                continue
            one.problem = ""
            if now > one.not_before + _PAUSES.longest_pause:
                del self._pieces[key]

    def begin(
        self, key: str, work: Callable[[], Awaitable[None]], told: Callable[[PluginError], Awaitable[None]]
    ) -> None:
        """Begin a piece of work, unless it runs, or failed just now; `told` is called with a failure that is new."""
        piece = self._pieces.setdefault(key, _Piece())
        loop = asyncio.get_running_loop()
        if piece.running or loop.time() < piece.not_before:
            return
        piece.running = True
        self._group.create_task(self._do(key, piece, work, told), name=f"provisioner: {key}")

    async def _do(
        self,
        key: str,
        piece: _Piece,
        work: Callable[[], Awaitable[None]],
        told: Callable[[PluginError], Awaitable[None]],
    ) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._places:
                await work()
            piece.problem, pause = "", SETTLING
            piece.pauses.over()
            self._done.set()
        except PluginError as error:
            pause = piece.pauses.next()
            if error.message != piece.problem:
                piece.problem = clip(error.message)
                LOG.warning("%s: %s; it is tried again", key, error.message)
                await told(error)
        except Exception:
            pause = piece.pauses.next()
            LOG.exception("%s failed; it is tried again", key)
        finally:
            piece.running = False
        piece.not_before = loop.time() + pause
        loop.call_later(pause, self._changed.set)
