"""The interpreter's objects in large pages, where the kernel has some on request.

Owns: which memory is asked for: what is full of objects when the daemon has started; and a thread that waits for it.
Refuses: to matter. A kernel that has none (before 6.1, or without transparent huge pages), or an administrator who
wants none, leaves everything as it is.

A call comes when other programs have used the processor meanwhile, and looks at objects all over the heap. With pages
of 4 KiB nearly each of these looks walks the page tables; in a virtual machine, each step of that walk is one more.
"""

import ctypes
import gc
import threading
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from itertools import chain, repeat
from operator import floordiv
from pathlib import Path
from typing import Final

_LIBC: Final = ctypes.CDLL(None, use_errno=True)
_MADV_COLLAPSE: Final = 25
_SIZE: Final = 2 << 20
"""Bytes of a large page where small ones have 4 KiB; elsewhere the kernel refuses, or has larger ones."""
_ENOUGH: Final = 256
"""Objects that make a range worth it: what is not used of it yet becomes resident, too."""
_SETTING: Final = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def gather() -> threading.Thread:
    """Begin to move what the garbage collector knows into large pages, in the thread that is returned."""
    try:
        found = _objects_by_range()
    except MemoryError:  # the list of objects does not fit: then nothing is moved
        found = Counter()
    dense = [number * _SIZE for number, count in found.items() if count >= _ENOUGH]
    thread = threading.Thread(target=_collapse, args=(dense,), name="large-pages", daemon=True)
    with suppress(RuntimeError):  # the process has as many threads as it may
        thread.start()
    return thread


def _objects_by_range() -> Counter[int]:
    """Count the objects that the garbage collector knows, by the number of the range that each begins in.

    Among them are tuples that other threads are about to fill. Such a thread fails if anybody else holds its tuple when
    it goes on (SystemError, `_PyTuple_Resize`). So there is no step of Python between the list of objects and its end:
    it is made, read and dropped in one call of the interpreter's own code, in which no other thread has a turn.
    """
    objects = chain.from_iterable(map(gc.get_objects, (None,)))
    return Counter(map(floordiv, map(id, objects), repeat(_SIZE)))


def _collapse(starts: Iterable[int]) -> None:
    """Ask for each range; one that is not mapped as a whole is refused, and stays as it is."""
    try:
        unwanted = "[never]" in _SETTING.read_text(encoding="ascii")
    except OSError:
        return
    for start in () if unwanted else starts:
        _LIBC.madvise(ctypes.c_void_p(start), ctypes.c_size_t(_SIZE), _MADV_COLLAPSE)
