"""The daemon's memory in large pages, as the kernel counts them."""

import subprocess
import sys
from pathlib import Path

import pytest

from nodeplug.process import large_pages

OBJECTS_IN_LARGE_PAGES = """
import re
from pathlib import Path
from nodeplug.process.large_pages import gather

held = [[number] for number in range(400_000)]
gather().join()
assert held[399_999] == [399_999]
print(re.findall("AnonHugePages: +([0-9]+)", Path("/proc/self/smaps_rollup").read_text())[0])
"""
TUPLES_OF_OTHER_THREADS = """
import sys, threading
from nodeplug.process.large_pages import gather

sys.setswitchinterval(1e-5)
failures, done = [], threading.Event()

def make() -> None:
    while not done.is_set():
        try:
            tuple(number for number in range(3))
        except SystemError as error:
            failures.append(error)

threads = [threading.Thread(target=make) for _ in range(2)]
for thread in threads:
    thread.start()
for _ in range(40):
    gather().join()
done.set()
for thread in threads:
    thread.join()
print(len(failures))
"""
COLLAPSES = """
import ctypes, mmap
memory = mmap.mmap(-1, 4 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory[:] = bytes(4 << 20)
start = -(-ctypes.addressof(ctypes.c_char.from_buffer(memory)) // (2 << 20)) * (2 << 20)
print(ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(2 << 20), 25))
"""


def output_of(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.unprivileged
def test_objects_that_live_long_are_in_large_pages() -> None:
    if output_of(COLLAPSES) != "0":
        pytest.skip("this kernel has no large pages on request (MADV_COLLAPSE, Linux 6.1)")
    if "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text():
        pytest.skip("the administrator of this machine wants no large pages")
    assert int(output_of(OBJECTS_IN_LARGE_PAGES)) >= 2048


@pytest.mark.whole
@pytest.mark.unprivileged
def test_threads_go_on_making_tuples_while_objects_are_counted() -> None:
    """A list of all objects has the tuples that others are about to fill; whoever holds it breaks them."""
    assert output_of(TUPLES_OF_OTHER_THREADS) == "0"


@pytest.mark.unprivileged
def test_a_list_of_objects_for_which_there_is_no_memory_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise MemoryError

    monkeypatch.setattr(large_pages, "_objects_by_range", fails)
    large_pages.gather().join()
