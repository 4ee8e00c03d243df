"""Exceptions of plugins that are no PluginError.

Owns: the traceback in the log, once for each request, and once for each fault of what the daemon's own timers call: a
listing that fails the same way every ten seconds says it once.
Refuses: to catch anything (the runner does).
"""

import logging
import traceback
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import SHOWN, PluginError, clip, text_of
from nodeplug.hosting.call import Call

LOG: Final = logging.getLogger(__name__)
_TIMED: Final = frozenset({"device_list", "device_released", "health", "metrics"})
_PLACES: Final = 20
"""Innermost frames that tell one fault from another."""


@dataclass(slots=True)
class Strays:
    """What was told last of each hook that a timer calls. Used from the threads of calls: one entry, one owner."""

    _told: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def told(self, plugin: str, hook: str, call: Call, error: BaseException) -> PluginError:
        """Log an exception, and return what the caller is told.

        Args:
            plugin: the section's name.
            hook: the hook that raised it.
            call: the request.
            error: what it raised.
        """
        kind = clip(type(error).__name__, 100)
        fault = f"{hook} of plugin {plugin!r} raised {kind}: {clip(text_of(error), SHOWN // 2)}"
        place = "".join(traceback.format_tb(error.__traceback__, limit=-_PLACES)) + kind
        before, first = self._told.get((plugin, hook), ("", ""))
        if hook in _TIMED and before == place:
            return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback at request {first})")
        if hook in _TIMED:
            self._told[plugin, hook] = place, call.id
        LOG.error("%s of plugin %s raised %s", hook, plugin, kind, exc_info=error)
        return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback)")
