"""What is set once for the whole process of the daemon.

Owns: the limit of descriptors, the garbage collector and the pages of its objects, how soon threads take turns.
Refuses: everything that belongs to one service.
"""

import gc
import resource
import sys
from typing import Final

from nodeplug.process import large_pages

_SWITCH_INTERVAL: Final = 0.0005
_DESCRIPTORS: Final = 65536


def allow_descriptors() -> None:
    """Raise the soft limit of descriptors: systemd's 1024 is for users of select(2), and each call brings three."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, _DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def settle() -> None:
    """Tune for the time after start.

    What start made lives as long as the daemon, so the collector need not look at it again, and large pages are worth
    their while; and a shorter switch interval lets a call's thread hand its answer to the loop sooner.
    """
    gc.collect()
    large_pages.gather()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL)
