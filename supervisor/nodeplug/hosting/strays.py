"""Exceptions of plugins that are not a PluginError.

Owns: the traceback in the log: once per request, but once per fault for hooks that the daemon's own timers call, so
that a listing that fails the same way every ten seconds is logged once.
Refuses: to catch anything (the runner does), and to show what the request hides.
"""

import logging
import traceback
from dataclasses import dataclass, field
from typing import Final

from nodeplug.contract.errors import SHOWN, PluginError, clip, text_of
from nodeplug.hosting.call import Call
from nodeplug.worker.encoding import Stray

LOG: Final = logging.getLogger(__name__)
_TIMED: Final = frozenset({"device_list", "device_released", "health", "metrics", "cluster_report"})
_PLACES: Final = 20
"""Innermost frames that distinguish faults."""


@dataclass(slots=True)
class Strays:
    """The last fault of each hook that a timer calls. Used from the threads of calls: each entry has one writer."""

    _told: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)

    def told(self, plugin: str, hook: str, call: Call, error: BaseException) -> PluginError:
        """Log what a hook of a section raised, and return the caller's error."""
        kind = error.kind if isinstance(error, Stray) else clip(type(error).__name__, 100)
        text = call.mask(text_of(error))
        fault = f"{hook} of plugin {plugin!r} raised {kind}: {clip(text, SHOWN // 2)}"
        place = (error.frames if isinstance(error, Stray) else _frames(error)) + kind
        before, first = self._told.get((plugin, hook), ("", ""))
        if hook in _TIMED and before == place:
            return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback at request {first})")
        if hook in _TIMED:
            self._told[plugin, hook] = place, call.id
        if isinstance(error, Stray):
            trace = error.whole if call.mask is str else f"{error.frames}{kind}: {text}"
            LOG.error("%s of plugin %s raised %s", hook, plugin, kind, extra={"trace": trace})
            return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback)")
        # Exceptions often carry their subject: a failed subprocess.run, its argv. Where something must stay hidden, the
        # traceback shows only lines of code, and no `__cause__`, which would bring its text along.
        shown = error if call.mask is str else (PluginError, PluginError(f"{kind}: {text}"), error.__traceback__)
        LOG.error("%s of plugin %s raised %s", hook, plugin, kind, exc_info=shown)
        return PluginError(f"{fault} (request {call.id}; the daemon's log has the traceback)")


def _frames(error: BaseException) -> str:
    return "".join(traceback.format_tb(error.__traceback__, limit=-_PLACES))
