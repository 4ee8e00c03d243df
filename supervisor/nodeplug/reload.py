"""Reading the configuration again while the daemon runs.

Owns: which configuration is in force, why a newer one is not, and the steps of a reload: read, compare, apply, tell,
count.
Refuses: the life of plugins (`lifecycle`), noticing that a file changed (`config_watch`), and to end the daemon:
whatever is wrong with a new configuration, the running one stays.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from nodeplug.config import ConfigError, Configuration
from nodeplug.lifecycle import Lifecycle
from nodeplug.observe import notify

LOG: Final = logging.getLogger(__name__)
_SETTLE: Final = 0.2
"""Seconds of quiet before a changed configuration is read: editors and ConfigMaps write in several steps."""


@dataclass(slots=True)
class Reloader:
    """The configuration of a running daemon. Used from the event loop alone.

    Attributes:
        configuration: what is in force; its `[supervisor]` is that of the start.
        error: why the newest configuration is not in force; empty when it is.
        changed: set by whoever wants the files to be read again.
    """

    configuration: Configuration
    read: Callable[[], Configuration]
    lifecycle: Lifecycle
    install: Callable[[], Awaitable[None]]
    count: Callable[[str], None]
    error: str = ""
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Reload after each change until cancelled."""
        while True:
            await self.changed.wait()
            await asyncio.sleep(_SETTLE)
            self.changed.clear()
            await self._reload()

    async def _reload(self) -> None:
        try:
            configuration = self.read()
        except ConfigError as error:
            if str(error) != self.error:
                LOG.error("the running configuration stays, the new one cannot be used: %s", "; ".join(error.problems))
            self.error = str(error)
            self.count("refused")
            return
        self.error = ""
        # What was refused is tried again even when the file is the same: its package may be installed by now.
        if configuration == self.configuration and not self.lifecycle.refused:
            return
        notify.reloading()
        if configuration.supervisor != self.configuration.supervisor:
            LOG.warning("[supervisor] changed: that takes effect when the daemon is restarted")
        self.configuration = configuration.model_copy(update={"supervisor": self.configuration.supervisor})
        changes = await self.lifecycle.apply(configuration.plugins)
        await self.install()
        LOG.info("configuration reloaded: %s", changes)
        self.count("applied")
        notify.ready()
