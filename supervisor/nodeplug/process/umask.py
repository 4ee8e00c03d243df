"""A thread with an umask of its own.

Owns: making files whose mode is right from the first instant.
Refuses: the umask of the process: were it changed, a plugin's mkdir at the same moment would make a folder that nobody
can enter.
"""

import ctypes
import os
import threading
from collections.abc import Callable
from typing import Final

_CLONE_FS: Final = 0x200  # sched.h; Python 3.11 has no os.unshare
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def with_umask(mask: int, work: Callable[[], object], name: str) -> None:
    """Do a short piece of work in a thread with a private umask (unshare(2), CLONE_FS), and wait for it.

    Raises:
        OSError: the kernel refuses, and whatever the work raises.
    """
    failures: list[BaseException] = []

    def run() -> None:
        try:
            if _LIBC.unshare(_CLONE_FS) != 0:
                code = ctypes.get_errno()
                raise OSError(code, os.strerror(code))
            os.umask(mask)
            work()
        except BaseException as error:  # handed to the caller, whatever it is
            failures.append(error)

    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]
