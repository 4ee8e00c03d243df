"""A node without memory: the kernel ends plugins' processes, each alone, and never the daemon before them."""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.node.workers.hostile_node import NEIGHBOUR, Node, hostile
from tests.node.workers.own_cgroups import OwnCgroups, own_cgroups, skip_without

from nodeplug.testing.waiting import until
from nodeplug.worker.cgroup import enter, write
from nodeplug.worker.hierarchies import members

MIB = 1 << 20
SHORT = "it was killed by SIGKILL; the node, or the daemon's cgroup, had no memory left"
BALLAST = 1 << 30
"""Bytes that no process has resident. A tenth of all is the score of a plugin's process, and more than the daemon has:
so it is in the unit, whose OOMScoreAdjust= not every root may set."""
WITHIN = ("sh", "-c", 'echo 0 > "$0" && exec "$@"')
ANOTHER = '[plugins.another]\nuses = "worker_guest:Guest"\nisolation = "process"\nconfig = { name = "another" }\n'


class Small:
    """A cgroup for a daemon and its plugins, whose memory a test takes away."""

    def __init__(self, own: OwnCgroups) -> None:
        self.unified = own.is_unified("memory")
        # Beside that of the test: in version 2 a cgroup with processes has no children with controllers.
        self.folder = own.of("memory").with_name(f"{own.of('memory').name}-small")
        self.folder.mkdir()
        self.home = own.of("memory")
        enter(self.folder, os.getpid())
        self.ballast = os.memfd_create("ballast")
        os.posix_fallocate(self.ballast, 0, BALLAST)
        enter(self.home, os.getpid())

    @property
    def entrance(self) -> str:
        return str(self.folder / "cgroup.procs")

    def leave(self, spare: int | None) -> None:
        """Leave so many bytes beside what is used; None: as many as there are."""
        used = self.folder / ("memory.current" if self.unified else "memory.usage_in_bytes")
        limit = -1 if spare is None else int(used.read_text(encoding="ascii")) + spare
        path = self.folder / ("memory.max" if self.unified else "memory.limit_in_bytes")
        write(path, "max" if self.unified and limit < 0 else limit)

    def remove(self) -> None:
        os.close(self.ballast)
        for root, _, _ in os.walk(self.folder, topdown=False):
            until(lambda: not members(Path(root)))  # noqa: B023 - it is asked in this very turn
            Path(root).rmdir()


@pytest.fixture
def small() -> Iterator[Small]:
    with own_cgroups() as own:
        skip_without(own, "memory")
        made = Small(own)
        try:
            yield made
        finally:
            made.remove()


@pytest.fixture
def make(small: Small, short_path: Path) -> Iterator[Callable[..., Node]]:
    made: list[Node] = []

    def make(plugins: str, supervisor: str = "") -> Node:
        node = Node(short_path, plugins, [*WITHIN, small.entrance], supervisor)
        made.append(node)
        node.scratch.start()
        return node

    yield make
    small.leave(None)
    for node in made:
        node.scratch.kill()


def test_a_plugin_that_takes_the_last_memory_is_ended_alone_and_started_again(
    make: Callable[..., Node], small: Small, short_path: Path
) -> None:
    node = make(hostile("process", "leaks", once=short_path / "once") + ANOTHER + NEIGHBOUR)
    pid, another = node.scratch.pid, node.plugin("another")["process"]["pid"]
    for driver in ("another", "other"):
        assert node.call(driver) == ""
    small.leave(64 * MIB)
    assert f"the process of plugin 'hostile' ended during volume_is_attached: {SHORT}; ask again" in node.call()
    assert node.until_started_again() == SHORT
    for driver in ("thing", "another", "other"):
        assert node.call(driver) == ""
    assert (node.scratch.pid, node.plugin("another")["process"]["pid"]) == (pid, another)
    assert node.scratch.running


def test_a_plugin_with_a_limit_that_it_has_not_reached_is_not_said_to_exceed_it(
    make: Callable[..., Node], small: Small, short_path: Path
) -> None:
    node = make(hostile("process", "leaks", 'memory = "512Mi"\n', short_path / "once"), "cgroups = true\n")
    small.leave(64 * MIB)
    assert f"the process of plugin 'hostile' ended during volume_is_attached: {SHORT}; ask again" in node.call()
    assert node.until_started_again() == SHORT


def test_a_plugin_that_somebody_kills_is_not_said_to_have_had_no_memory(
    make: Callable[..., Node], small: Small, short_path: Path
) -> None:
    node = make(hostile("process", "leaks", once=short_path / "once") + ANOTHER)
    small.leave(64 * MIB)
    node.call()
    assert node.until_started_again() == SHORT
    os.kill(node.plugin("another")["process"]["pid"], signal.SIGKILL)
    assert node.until_started_again("another") == "it was killed by SIGKILL"


def test_a_plugin_for_which_no_memory_is_left_is_tried_again_until_there_is_some(
    make: Callable[..., Node], small: Small
) -> None:
    section = hostile("process", "changes folder")
    node = make(NEIGHBOUR + section)
    node.scratch.configure(NEIGHBOUR)
    until(lambda: members(small.folder) == [node.scratch.pid])
    small.leave(8 * MIB)
    node.scratch.configure(NEIGHBOUR + section)
    until(lambda: len(node.scratch.status()["plugins"]) == 2 and node.plugin()["state"] == "failed")
    assert f"the process of plugin 'hostile' ended during its loading: {SHORT}" in node.plugin()["reason"]
    assert node.call("other") == ""
    assert node.call() != ""
    small.leave(None)
    until(lambda: node.plugin()["state"] == "running")
    assert node.call() == ""
    assert node.scratch.running
