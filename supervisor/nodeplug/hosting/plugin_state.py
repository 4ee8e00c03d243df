"""Where one section of the configuration stands on its way to a plugin that runs.

Owns: the states, and what is wrong, in words.
Refuses: the steps from one state to the next (`nodeplug.hosting.lifecycle`).
"""

import asyncio
import itertools
from dataclasses import dataclass, field
from typing import Final, Literal

from nodeplug.config import PluginSection
from nodeplug.hosting.registry import Loaded

State = Literal["starting", "running", "failed", "refused"]
FIRST_RETRY: Final = 1.0
"""Seconds between the first start that failed and the next."""


@dataclass(slots=True, eq=False)
class PluginState:
    """Where one section stands.

    Attributes:
        name: the section's name.
        section: the configuration that led here.
        state: "refused" cannot be loaded; "failed" its start raised or its loading hangs; "starting"; "running".
        fault: why it is refused, failed or not healthy; empty when all is well.
        outdone_by: who has what it claims, if that is why it is refused.
        rejected: why a newer section is not in force, and this one still is; empty when there is none.
        retry_at: `time.monotonic()` of the next start, when failed.
        retry_after: seconds of the present backoff.
        prepared: what was loaded, once its `prepare` was called: `stop` is due even if it never starts.
        begun: its `start` has succeeded, so that its `stop` is due.
        beginning: done when a `start` that is under way has ended.
        number: tells instances apart.
    """

    name: str
    section: PluginSection
    distribution: str = ""
    state: State = "refused"
    fault: str = ""
    outdone_by: str = ""
    rejected: str = ""
    loaded: Loaded | None = None
    retry_at: float = 0.0
    retry_after: float = FIRST_RETRY
    prepared: Loaded | None = None
    begun: bool = False
    beginning: asyncio.Future[None] | None = None
    number: int = field(default_factory=itertools.count(1).__next__)

    @property
    def uses(self) -> str:
        """The entry-point name or `module:Class` of the plugin."""
        return self.section.uses or self.name

    @property
    def reason(self) -> str:
        """Everything that is wrong with it; empty when all is well."""
        return "; ".join(filter(None, (self.fault, self.rejected)))


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """The loading of one plugin."""

    state: PluginState
    task: asyncio.Task[Loaded]
