"""A daemon that serves a plugin and is replaced by another one."""

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from tests.ended import kill, wait_until_ended

from nodeplug.testing import ScratchNode

SECTION = '[plugins.guest]\nuses = "handover_guest:Guest"\nisolation = "{}"\nconfig = {{ folder = "{}" }}\n'
T = TypeVar("T")


@contextmanager
def running(folder: Path, tmp_path: Path, isolation: str = "thread", **more: str) -> Iterator[ScratchNode]:
    """Run a daemon whose plugin works in `tmp_path`; whichever daemon serves at the end is killed.

    Args:
        folder: the node's, with a short name.
        isolation: of the plugin.
        more: variables of the daemon's environment.
    """
    environment = {"PYTHONPATH": str(Path(__file__).parent), **more}
    node = ScratchNode(folder, SECTION.format(isolation, tmp_path), env=environment, fork=True)
    node.start()
    try:
        yield node
    finally:
        with suppress(Exception):
            kill(serving(node))
        node.kill()


def serving(node: ScratchNode) -> int:
    return int(node.status()["pid"])


def replace(node: ScratchNode) -> int:
    before = serving(node)
    done = node.run("replace", "--json")
    assert done.returncode == 0, done.stderr + node.log
    told = json.loads(done.stdout)
    assert told["pid"] == before
    assert told["successor"] == serving(node) != before
    wait_until_ended(before)
    return int(told["successor"])


@contextmanager
def beside(work: Callable[[], T]) -> Iterator[Callable[[], T]]:
    """Begin work in a thread; what is yielded waits for its answer."""
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work).result
