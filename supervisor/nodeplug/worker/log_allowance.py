"""How many lines of a plugin's process the daemon writes into its own log.

Owns: the rate, and the count of what was left out.
Refuses: lines: its callers have them.

journald leaves out all lines of a unit, those of the daemon too, when one wrote 10,000 in 30 s (journald.conf(5),
RateLimitBurst). One plugin alone does not come near it.
"""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

LOG: Final = logging.getLogger(__name__)
BURST: Final = 1000
"""Lines that may come at once."""
PER_SECOND: Final = 100
"""Lines in each second after that."""


class LogAllowance:
    """How many lines of one process may be logged now. Any thread may use it.

    Args:
        plugin: the name of its section.
        clock: seconds, as those of `time.monotonic`.
    """

    def __init__(self, plugin: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._plugin, self._clock = plugin, clock
        self._changing = threading.Lock()
        self._left, self._since, self._left_out = float(BURST), clock(), 0

    def take(self) -> bool:
        """Return whether one more line may be logged; the first one after others says how many were left out.

        Once one was left out, all are until those of a second may come, so there is one such sentence in a second.
        """
        with self._changing:
            now = self._clock()
            self._left = min(BURST, self._left + (now - self._since) * PER_SECOND)
            self._since = now
            if self._left < (PER_SECOND if self._left_out else 1):
                self._left_out += 1
                return False
            self._left -= 1
            left_out, self._left_out = self._left_out, 0
        self._tell(left_out)
        return True

    def end(self) -> None:
        """Log how many lines were left out since the last such sentence."""
        with self._changing:
            left_out, self._left_out = self._left_out, 0
        self._tell(left_out)

    def _tell(self, left_out: int) -> None:
        if left_out:
            said = f"{left_out} lines of plugin {self._plugin} were left out: it may log {PER_SECOND} in a second"
            LOG.warning("%s, and %d at once", said, BURST)
