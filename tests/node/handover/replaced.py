"""A daemon that serves a plugin and is replaced by another one."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

SECTION = '[plugins.guest]\nuses = "handover_guest:Guest"\nisolation = "{}"\nconfig = {{ folder = "{}" }}\n'
T = TypeVar("T")


def serving(node: ScratchNode) -> int:
    return int(node.status()["pid"])


def replace(node: ScratchNode) -> int:
    before = serving(node)
    done = node.run("replace", "--json")
    assert done.returncode == 0, done.stderr + node.log
    told = json.loads(done.stdout)
    assert told["pid"] == before
    assert told["successor"] == serving(node) != before
    until(lambda: not Path(f"/proc/{before}/exe").exists() or zombie(before))
    return int(told["successor"])


def zombie(pid: int) -> bool:
    with suppress(OSError):
        return "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text()
    return True


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Begin work in a thread; what is yielded waits for its answer."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work).result
