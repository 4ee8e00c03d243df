"""The descriptors of the daemon, and those of them that are kept for what ends something.

Owns: the soft limit (RLIMIT_NOFILE, getrlimit(2)): a little below what the daemon may have, and at that while all
others are used up.
Refuses: to know who uses them, and who is refused meanwhile.

Every call needs some, an unmount too, and whoever leaks them in a thread of the daemon leaks those of all.
"""

import errno
import logging
import os
import resource
import time
from contextlib import suppress
from typing import Final

LOG: Final = logging.getLogger(__name__)
MOST: Final = 65536
"""Descriptors that the daemon takes, if it may."""
KEPT: Final = 512
"""Descriptors below the limit that are reserved for what ends something."""
_FEW: Final = 8 * KEPT
"""With fewer, nothing is kept: a busy node needs all."""
_PAUSE: Final = 1.0
"""Seconds between two counts: each takes as long as there are descriptors."""


class DescriptorReserve:
    """Reserves descriptors. One thread calls `look`; any thread may read `used`.

    Attributes:
        used: why new work is refused while the reserve is in use; empty otherwise.
    """

    def __init__(self) -> None:
        self._limit = 0
        self._count_at = 0.0
        self.used = ""

    def keep(self) -> None:
        """Raise the soft limit: systemd's 1024 is for users of select(2), and each call brings three."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
        if soft == resource.RLIM_INFINITY:
            return
        most = max(most, soft)  # a container runtime may have given more
        self._limit = most - KEPT if most >= _FEW else 0
        resource.setrlimit(resource.RLIMIT_NOFILE, (self._limit or most, hard))

    def look(self) -> None:
        """Let the daemon use what is kept once all others are used up, and keep it again afterwards.

        A limit that somebody else has set stays.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if not self._limit or soft not in {self._limit, self._limit + KEPT}:
            return
        if self.used:
            if (count := self._count()) < self._limit - KEPT:
                resource.setrlimit(resource.RLIMIT_NOFILE, (self._limit, hard))
                LOG.warning("the daemon has descriptors again: %d are open", count)
                self.used = ""
        elif _none_is_left():
            resource.setrlimit(resource.RLIMIT_NOFILE, (self._limit + KEPT, hard))
            self.used = (
                f"{self._limit} descriptors are open, and the last {KEPT} are kept for what ends something; "
                f"`ls -l /proc/{os.getpid()}/fd` shows of what; restart the daemon if that does not pass"
            )
            LOG.error("%s", self.used)

    def _count(self) -> int:
        """Return the number of open descriptors; the limit if they cannot be counted, or were counted a second ago."""
        if time.monotonic() >= self._count_at:
            self._count_at = time.monotonic() + _PAUSE
            with suppress(OSError):  # even what is kept is used up
                return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - names alone
        return self._limit


def _none_is_left() -> bool:
    try:
        os.close(os.dup(2))
    except OSError as error:
        return error.errno == errno.EMFILE
    return False
