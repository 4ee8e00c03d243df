"""A start with a configuration that is wrong in parts: what was in force last goes on.

Owns: which sections are taken from there, what is said of it, and the record of what is in force now.
Refuses: what is in the record (`nodeplug.config.last_good`), and reloads: there the running plugin stays by itself.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from nodeplug.config import PluginSection, last_good
from nodeplug.contract.errors import PluginError
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.reload import Reloader
from nodeplug.process.lane import Lane, Unanswered

LOG: Final = logging.getLogger(__name__)


@dataclass(slots=True)
class LastGood:
    """Used only from the event loop.

    Attributes:
        state: the folder of the record.
        trouble: why what is in force cannot be recorded; logged once.
    """

    state: Path
    lifecycle: Lifecycle
    reloader: Reloader
    trouble: str = ""
    _lane: Lane = field(default_factory=lambda: Lane("the record of the configuration"))
    _kept: tuple[object, Sequence[str]] | None = None

    async def start(self, wanted: Mapping[str, PluginSection]) -> None:
        """Start the plugins; one whose section is refused by it starts with the section that was in force last."""
        await self.lifecycle.apply(wanted)
        slots = self.lifecycle.registry.slots
        refused = {name: slot.reason for name, slot in slots.items() if slot.state == "refused"}
        if not refused:
            return
        try:
            known = await self._lane.run(lambda: last_good.sections(self.state, list(refused)))
        except Unanswered as error:
            LOG.error("refused plugins stay so: %s", error)
            return
        former = {name: section for name, section in known.items() if section != wanted[name]}
        if not former:
            return
        await self.lifecycle.apply({**wanted, **former})
        for name in former:
            if slots[name].state != "refused":
                slots[
                    name
                ].rejected = f"its configuration cannot be used, the one that was in force last serves: {refused[name]}"
                LOG.error("plugin %s: %s", name, slots[name].rejected)

    async def keep(self) -> None:
        """Record what is in force, if that has changed."""
        reading, slots = self.reloader.reading, self.lifecycle.registry.slots
        refused = [name for name, slot in slots.items() if slot.loaded is None or slot.rejected]
        now = reading.identity, refused
        if now == self._kept or not reading.places.main.tables:
            return
        try:
            await self._lane.run(lambda: last_good.write(self.state, reading, refused))
        except (PluginError, OSError) as error:
            if not self.trouble:
                LOG.warning("what is in force cannot be recorded for a later start: %s", error)
            self.trouble = str(error)
            return
        self.trouble, self._kept = "", now
