"""What is set once for the whole process of the daemon.

Owns: the garbage collector and the pages of its objects, how soon threads take turns.
Refuses: everything that belongs to one service.
"""

import gc
import sys
from typing import Final

from nodeplug.process import large_pages

_SWITCH_INTERVAL: Final = 0.0005


def settle() -> None:
    """Tune for the time after start.

    What start made lives as long as the daemon, so the collector need not look at it again, and large pages are worth
    their while; and a shorter switch interval lets a call's thread hand its answer to the loop sooner.
    """
    gc.collect()
    large_pages.gather()
    gc.freeze()
    sys.setswitchinterval(_SWITCH_INTERVAL)
