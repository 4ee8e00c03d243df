"""Reading the configuration again while the daemon runs.

Owns: which configuration is in force, why a newer one is not, and the steps of a reload: read, compare, apply, report,
count. Each new state of the files is handled once, and again on request (SIGHUP).
Refuses: the life of plugins (`lifecycle`), noticing that a file changed (`config.watch`), and ending the daemon: if a
new configuration is wrong or cannot be read, the running one stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Final

from nodeplug.config import Reading
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.registry import Difference
from nodeplug.process import notify
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
_RELOADED: Final = frozenset({"version", "plugins"})
READ_PATIENCE: Final = 10.0
"""Seconds that reading the files may take: a filesystem may hang."""
_SETTLE: Final = 0.2
"""Seconds of quiet before a changed configuration is read: editors and ConfigMaps write in several steps."""


@dataclass(slots=True)
class Reloader:
    """The configuration of a running daemon. Used only from the event loop.

    Attributes:
        reading: what is in force; its `[supervisor]` is the one from the start.
        read: reads the files again; it may block.
        error: why the newest configuration is not in force; empty when it is.
    """

    reading: Reading
    read: Callable[[Reading], Reading]
    lifecycle: Lifecycle
    install: Callable[[], Awaitable[None]]
    count: Callable[[str], None]
    patience: float = READ_PATIENCE
    error: str = ""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _asked: bool = False
    _handled: object = None
    _under_way: "asyncio.Future[Reading] | None" = None

    def ask(self) -> None:
        """Have the files read again, and retry what was refused even if they are unchanged."""
        self._asked = True
        self._changed.set()

    def notice(self) -> None:
        """Have the files read again, since they may have changed."""
        self._changed.set()

    async def run(self) -> None:
        """Reload after each change until cancelled."""
        self._handled = self.reading.identity
        while True:
            await self._changed.wait()
            await asyncio.sleep(_SETTLE)
            self._changed.clear()
            asked, self._asked = self._asked, False
            try:
                await self._again(asked=asked)
            except Exception as error:
                LOG.exception("the configuration could not be reloaded")
                self._refuse([f"it could not be reloaded: {type(error).__name__}: {error}"])

    async def _again(self, *, asked: bool) -> None:
        identity: object = "too slow"
        problems = [f"reading its files takes longer than {self.patience:g} s; it goes on when they can be read"]
        new = await self._read()
        if new is not None:
            identity, problems = new.identity, list(new.mistakes)
        if identity == self._handled and not asked:
            return  # two events of one change, or one that changed nothing
        self._handled = identity
        notify.reloading()
        try:
            if new is None or problems:
                self._refuse(problems)
            else:
                await self._apply(new)
        finally:
            notify.ready()

    async def _read(self) -> Reading | None:
        """Return what the files say; None if that takes too long, in which case `run` is woken when it is done."""
        if self._under_way is None:
            self._under_way = aside(lambda: self.read(self.reading), "read the configuration")
        done, _ = await asyncio.wait({self._under_way}, timeout=self.patience)
        if not done:
            self._under_way.add_done_callback(lambda _: self._changed.set())
            return None
        outcome, self._under_way = self._under_way, None
        return outcome.result()

    def _refuse(self, problems: list[str]) -> None:
        LOG.error("the running configuration stays, the new one cannot be used: %s", "; ".join(problems))
        self.error = "\n".join(problems)
        self.count("refused")

    async def _apply(self, new: Reading) -> None:
        self.error = ""
        wanted = new.configuration
        present = self.reading.configuration
        fixed = {name: getattr(present, name) for name in type(present).model_fields if name not in _RELOADED}
        for name, part in fixed.items():
            if getattr(wanted, name) != part:
                LOG.warning("[%s] changed: that takes effect when the daemon is restarted", name)
        kept = wanted.model_copy(update=fixed)
        self.reading = replace(new, configuration=kept)
        changes = await self.lifecycle.apply(wanted.plugins, new.places.tell)
        await self.install()
        refused = [name for name in self.lifecycle.refused if name in wanted.plugins]
        outcome = _outcome(changes, refused)
        if refused:
            LOG.warning("configuration reloaded, %s: %s; not in force: %s", outcome, changes, ", ".join(refused))
        else:
            LOG.info("configuration reloaded: %s", changes)
        self.count(outcome)


def _outcome(changes: Difference, refused: list[str]) -> str:
    """Return "applied", "partly refused", or "refused" when nothing of it is in force."""
    if not refused:
        return "applied"
    taken = {*changes.removed, *changes.added, *changes.changed} - set(refused)
    return "partly refused" if taken else "refused"
