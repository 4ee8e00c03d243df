"""Exceptions of plugins that are no PluginError.

Owns: the traceback in the log, once for each request, and once for each fault of what the daemon's own timers call: a
listing that fails the same way every ten seconds says it once.
Refuses: to catch anything (the runner does), and to show what the request hides.
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
        """Log what a hook of a section raised, and return what the caller is told."""
        kind = clip(type(error).__name__, 100)
        text = call.mask(text_of(error))
        fault = f"{hook} of plugin {plugin!r} raised {kind}: {clip(text, SHOWN // 2)}"
        place = "".join(traceback.format_tb(error.__traceback__, limit=-_PLACES)) + kind
        before, first = self._told.get((plugin, hook), ("", ""))
        if hook in _TIMED and before == place:
            return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback at request {first})")
        if hook in _TIMED:
            self._told[plugin, hook] = place, call.id
        # Many an exception carries what it was about: a failed subprocess.run, its whole argv. Where something is to be
        # hidden, lines of code alone tell where it came from; what led to it (`__cause__`) would bring its text along.
        shown = error if call.mask is str else (PluginError, PluginError(f"{kind}: {text}"), error.__traceback__)
        LOG.error("%s of plugin %s raised %s", hook, plugin, kind, exc_info=shown)
        return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback)")
