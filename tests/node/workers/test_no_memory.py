"""A node without memory: the kernel ends plugins' processes, each alone, and never the daemon before them."""

import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.node.workers.hostile_node import NEIGHBOUR, Node, hostile
from tests.node.workers.own_cgroups import OwnCgroups, own_cgroups, skip_without

import nodeplug as n
from nodeplug.testing.waiting import until
from nodeplug.worker.cgroup import enter, write
from nodeplug.worker.hierarchies import members
from nodeplug.worker.shortage import counted

MIB = 1 << 20
pytestmark = pytest.mark.whole
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

    @property
    def kills(self) -> int:
        """How many processes the kernel has ended here."""
        return counted(self.folder / ("memory.events" if self.unified else "memory.oom_control"))

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


@dataclass(frozen=True)
class Starved:
    """A node whose hostile plugin was ended for memory, and has been started again.

    Attributes:
        node: it.
        before: the processes, before that.
    """

    node: Node
    before: dict[str, int]


def pids_of(node: Node) -> dict[str, int]:
    """Return the process of the daemon, and of each plugin that has one."""
    rows = node.scratch.status()["plugins"]
    return {"daemon": node.scratch.pid} | {row["name"]: row["process"]["pid"] for row in rows if row["process"]}


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


@pytest.fixture
def starve(make: Callable[..., Node], small: Small) -> Callable[..., Starved]:
    """Have a plugin take the last memory.

    Again, when the kernel has ended two: it takes a second one when somebody asks for memory while that of the first
    is on its way back (mm/memcontrol.c, mem_cgroup_out_of_memory).
    """

    def starve(once: Path, plugins: str, supervisor: str = "") -> Starved:
        for _ in range(5):
            small.leave(None)
            once.unlink(missing_ok=True)
            # In version 1 only the cgroup of a process counts its end, here that of the plugin.
            node, due = make(plugins, supervisor), small.kills + (small.unified or not supervisor)
            pids = pids_of(node)
            small.leave(64 * MIB)
            answer = node.call()
            if small.kills == due:
                assert f"the process of plugin 'hostile' ended during volume_is_attached: {SHORT}; ask again" in answer
                assert node.until_started_again() == SHORT
            if small.kills == due:
                return Starved(node, pids)
            node.scratch.kill()
        raise AssertionError("the kernel ended two processes each time")

    return starve


def test_a_plugin_that_takes_the_last_memory_is_ended_alone_and_started_again(
    starve: Callable[..., Starved], short_path: Path
) -> None:
    once = short_path / "once"
    starved = starve(once, hostile("process", "leaks", once=once) + ANOTHER + NEIGHBOUR)
    for driver in ("thing", "another", "other"):
        assert starved.node.call(driver) == ""
    after = pids_of(starved.node)
    assert (after["daemon"], after["another"]) == (starved.before["daemon"], starved.before["another"])
    assert after["hostile"] != starved.before["hostile"]


def test_a_plugin_with_a_limit_that_it_has_not_reached_is_not_said_to_exceed_it(
    starve: Callable[..., Starved], short_path: Path
) -> None:
    once = short_path / "once"
    starve(once, hostile("process", "leaks", 'memory = "512Mi"\n', once), "cgroups = true\n")


def test_a_plugin_that_somebody_kills_is_not_said_to_have_had_no_memory(
    starve: Callable[..., Starved], short_path: Path
) -> None:
    once = short_path / "once"
    node = starve(once, hostile("process", "leaks", once=once) + ANOTHER).node
    os.kill(pids_of(node)["another"], signal.SIGKILL)
    assert node.until_started_again("another") == "it was killed by SIGKILL"


@dataclass(frozen=True)
class Loaded:
    """What was seen while a plugin had no memory to load with; there is enough again.

    Attributes:
        node: the node, whose daemon runs.
        reason: why the plugin had failed.
        other: what a plugin that ran answered.
        answer: what the one without memory answered.
    """

    node: Node
    reason: str
    other: str
    answer: str


@pytest.fixture
def load_starved(make: Callable[..., Node], small: Small) -> Callable[[str], Loaded]:
    """Take the memory that a plugin needs to load; again, as in `starve`, when the kernel has ended the daemon too."""

    def attempt(node: Node, section: str) -> Loaded:
        node.scratch.configure(NEIGHBOUR)
        until(lambda: members(small.folder) == [node.scratch.pid])
        small.leave(12 * MIB)
        node.scratch.configure(NEIGHBOUR + section)
        until(lambda: len(node.scratch.status()["plugins"]) == 2 and node.plugin()["state"] == "failed")
        seen = Loaded(node, node.plugin()["reason"], node.call("other"), node.call())
        small.leave(None)
        node.scratch.status()
        return seen

    def load_starved(section: str) -> Loaded:
        for _ in range(5):
            small.leave(None)
            node = make(NEIGHBOUR + section)
            try:
                return attempt(node, section)
            except (n.PluginError, ConnectionError):
                node.until_ended()
                node.scratch.kill()
        raise AssertionError("the kernel ended the daemon each time")

    return load_starved


def test_a_plugin_for_which_no_memory_is_left_is_tried_again_until_there_is_some(
    load_starved: Callable[[str], Loaded],
) -> None:
    seen = load_starved(hostile("process", "changes folder"))
    assert f"the process of plugin 'hostile' ended during its loading: {SHORT}" in seen.reason
    assert seen.other == ""
    assert seen.answer != ""
    until(lambda: seen.node.plugin()["state"] == "running")
    assert seen.node.call() == ""
    assert seen.node.scratch.running
