"""What the process of a plugin may have is kept by a cgroup of its own, where the daemon may make one."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import children_of
from tests.ended import has_ended
from tests.node.workers.own_cgroups import MARK, OwnCgroups, own_cgroups, skip_without

import nodeplug as n
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until
from nodeplug.worker.cgroup import enter
from nodeplug.worker.cgroups import LEAF, PREFIX, Cgroups
from nodeplug.worker.hierarchies import Hierarchy, members

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[..., None]
LIMIT = 96 << 20
TOLD = "it exceeded its memory of 96 MiB"


@pytest.fixture
def own() -> Iterator[OwnCgroups]:
    with own_cgroups() as found:
        yield found


@pytest.fixture
def memory(own: OwnCgroups) -> OwnCgroups:
    skip_without(own, "memory")
    return own


@pytest.fixture
def pids(own: OwnCgroups) -> OwnCgroups:
    skip_without(own, "pids")
    return own


def within(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text(encoding="ascii")


# --- memory -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", [pytest.param("leaks", marks=pytest.mark.whole), "starts a child that leaks"])
def test_what_exceeds_its_memory_is_ended_alone_and_says_so(how: str, memory: OwnCgroups, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        once = str(guests.folder / "once")
        await guests.apply(
            guest=guests.section(memory=LIMIT, at="device_list", how=how, once=once),
            other=guests.section(name="b", memory=LIMIT),
        )
        first, other = guests.pid(), guests.pid("other")
        assert len(memory.workers()) == 2
        with suppress(n.TryAgain):  # a child leaks beside the call
            await guests.call("device_list")
        restarts = guests.lifecycle.registry.slots["guest"].restarts
        await guests.until(lambda: restarts.count == 1 and guests.state() == "running" and guests.pid() != first)
        assert restarts.why == TOLD
        await guests.call("device_list")
        assert guests.pid("other") == other
        await guests.until(lambda: len(memory.workers()) == 2)

    play(story, Cgroups(True))
    until(lambda: memory.workers() == [])


def test_address_space_that_is_reserved_does_not_count(memory: OwnCgroups, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(memory=LIMIT, at="device_list", how="reserves"))
        await guests.call("device_list")
        assert PREFIX in within(guests.pid())
        assert guests.lifecycle.registry.slots["guest"].restarts.count == 0

    play(story, Cgroups(True))


def test_a_process_that_is_too_large_from_the_beginning_says_so(memory: OwnCgroups, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(memory=4 << 20))
        slot = guests.lifecycle.registry.slots["guest"]
        await guests.until(lambda: slot.state == "failed")
        assert "it exceeded its memory of 4 MiB" in slot.reason

    play(story, Cgroups(True))
    until(lambda: memory.workers() == [])


def test_nothing_of_a_worker_runs_outside_its_cgroup(memory: OwnCgroups, play: Play, tmp_path: Path) -> None:
    note = tmp_path / "where"
    (tmp_path / "sitecustomize.py").write_text(
        f"import os\nopen({str(note)!r}, 'a').write(open('/proc/self/cgroup').read())\n", encoding="ascii"
    )

    async def story(guests: "Guests") -> None:
        sys.path.insert(0, str(tmp_path))
        try:
            await guests.apply(guest=guests.section(memory=LIMIT))
        finally:
            sys.path.remove(str(tmp_path))
        assert note.read_text(encoding="ascii") == within(guests.pid())
        assert f"/{PREFIX}{os.getpid()}-" in within(guests.pid())

    play(story, Cgroups(True))


@pytest.mark.whole
def test_a_session_of_its_own_counts_for_no_limit_of_memory_and_outlives_its_worker(
    memory: OwnCgroups, play: Play
) -> None:
    kept: list[int] = []

    async def story(guests: "Guests") -> None:
        how = "starts a child that is kept and grows"
        await guests.apply(guest=guests.section(memory=LIMIT, at="health", how=how))
        first = guests.pid()
        await guests.call("health")
        kept.extend(children_of(first))
        assert PREFIX in within(kept[0])
        statm = Path(f"/proc/{kept[0]}/statm")
        await guests.until(lambda: int(statm.read_text(encoding="ascii").split()[1]) > LIMIT // 4096)
        assert guests.pid() == first
        os.kill(first, signal.SIGKILL)
        await guests.until(lambda: guests.state() == "running" and guests.pid() != first)
        await guests.until(lambda: PREFIX not in within(kept[0]))
        assert not has_ended(kept[0])
        await guests.until(lambda: len(memory.workers()) == 1)

    try:
        play(story, Cgroups(True))
        assert not has_ended(kept[0])
    finally:
        for pid in kept:
            os.kill(pid, signal.SIGKILL)
    until(lambda: memory.workers() == [])


# --- tasks ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("user", ["", pytest.param("root", marks=pytest.mark.whole)])
def test_tasks_are_counted_by_section_and_without_a_user_of_its_own(user: str, pids: OwnCgroups, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        limited = guests.section(user=user, tasks=30, at="health", how="starts threads")
        await guests.apply(guest=limited, other=guests.section(user=user, name="b", tasks=30))
        for _ in range(2):
            with pytest.raises(n.Exhausted, match=r"can't start new thread after [12][0-9]"):
                await guests.call("health")
        await guests.call("device_list", name="other")
        assert guests.lifecycle.registry.slots["guest"].restarts.count == 0

    play(story, Cgroups(True))
    until(lambda: pids.workers() == [])


@pytest.mark.whole
def test_children_end_with_their_worker_and_a_session_of_its_own_does_not(pids: OwnCgroups, play: Play) -> None:
    kept: list[int] = []

    async def story(guests: "Guests") -> None:
        await guests.apply(
            guest=guests.section(tasks=30, at="health", how="starts a child in a group"),
            other=guests.section(name="b", tasks=30, at="health", how="starts a child that is kept"),
        )
        await guests.call("health")
        await guests.call("health", name="other")
        (child,), (session,) = children_of(guests.pid()), children_of(guests.pid("other"))
        kept.append(session)
        assert os.getpgid(child) == child
        for name in ("guest", "other"):
            first = guests.pid(name)
            os.kill(first, signal.SIGKILL)
            await guests.until(lambda: guests.state(name) == "running" and guests.pid(name) != first)  # noqa: B023
        await guests.until(lambda: has_ended(child))
        await guests.until(lambda: PREFIX not in within(session))
        assert not has_ended(session)

    try:
        play(story, Cgroups(True))
    finally:
        for pid in kept:
            os.kill(pid, signal.SIGKILL)
    until(lambda: pids.workers() == [])


def test_without_a_cgroup_tasks_need_a_user_and_say_why(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        for user, capabilities, said in (
            ("root", None, "the kernel counts none of a user with root; name another `user`, or no `tasks`"),
            ("nobody", ("CAP_SYS_ADMIN",), "the kernel counts none of a user with CAP_SYS_ADMIN"),
        ):
            await guests.apply(guest=guests.section(user=user, capabilities=capabilities, tasks=30))
            reason = guests.lifecycle.registry.slots["guest"].reason
            assert guests.state() == "refused"
            assert "nothing limits its `tasks`: no cgroup does, since `cgroups` is false; without one, " in reason
            assert said in reason

    play(story)


# --- whose cgroup it is -----------------------------------------------------------------------------------------


def test_what_systemd_has_delegated_is_used_without_being_told(own: OwnCgroups) -> None:
    if own.is_unified("pids"):
        pytest.skip("needs a cgroup hierarchy of version 1 with the controller pids")
    assert Cgroups("auto").lacks("pids") == "systemd has delegated none to the daemon (Delegate=)"
    own.delegate()
    assert Cgroups("auto").lacks("pids") == ""


def test_a_cgroup_above_the_delegated_one_is_nobodys(own: OwnCgroups) -> None:
    own.delegate()
    folder = own.of("pids")
    inner = folder / "inner"
    if own.is_unified("pids"):
        pytest.skip("needs a cgroup hierarchy of version 1 with the controller pids")
    inner.mkdir()
    enter(inner, os.getpid())
    assert f"systemd has delegated /{folder.name}, and the daemon is in" in Cgroups("auto").lacks("pids")


def test_the_root_of_a_hierarchy_is_told_from_every_other_cgroup(own: OwnCgroups) -> None:
    found = [own.of(one) for one in ("memory", "pids") if not own.is_unified(one)]
    if not found:
        pytest.skip("needs a cgroup hierarchy of version 1")
    root = found[0]
    while (root.parent / "cgroup.procs").exists():
        root = root.parent
    assert Hierarchy(PurePosixPath("/"), root).is_root
    assert not Hierarchy(PurePosixPath("/a"), found[0]).is_root


def test_version_2_is_used_only_where_systemd_starts_the_daemon_in_a_leaf(own: OwnCgroups) -> None:
    if not own.is_unified("memory") or "" not in own.folders:
        pytest.skip("needs a cgroup hierarchy of version 2 with the controller memory")
    skip_without(own, "memory")
    folder = own.of("memory")
    own.delegate()
    for wanted in ("auto", True):
        assert "DelegateSubgroup=" in Cgroups(wanted).lacks("memory")
    (folder / LEAF).mkdir()
    enter(folder / LEAF, os.getpid())
    assert Cgroups("auto").lacks("memory") == ""
    assert os.getpid() in members(folder / LEAF)


@pytest.mark.programs("mount", "unshare")
def test_a_container_with_a_cgroup_namespace_finds_itself_only_where_its_own_mounts_show_it(
    own: OwnCgroups, short_path: Path
) -> None:
    if own.is_unified("pids"):
        pytest.skip("needs a cgroup hierarchy of version 1 with the controller pids")
    # An old mount shows it too, by a path that leads out of the namespace: "/..".
    code = (
        "from nodeplug.worker.hierarchies import hierarchies; one = hierarchies().get('pids');"
        "print(one and [str(one.path), str(one.folder), one.is_root])"
    )
    look = f'"{sys.executable}" -c "{code}"'
    script = f"{look}; mount -t cgroup -o pids none {short_path}; {look}"
    done = subprocess.run(
        ["unshare", "--cgroup", "--mount", "sh", "-ec", script], capture_output=True, text=True, check=True
    )
    outside, inside = done.stdout.splitlines()
    assert outside == "None"
    assert inside == str(["/", str(short_path), False])


@pytest.mark.parametrize("hierarchy", ["", "name=systemd"])
def test_the_mark_is_read_in_either_hierarchy_in_which_systemd_may_write_it(hierarchy: str, own: OwnCgroups) -> None:
    if own.is_unified("pids") or not {"", "name=systemd"} <= own.folders.keys():
        pytest.skip("needs a cgroup hierarchy of version 1 with the controller pids, and one of version 2")
    os.setxattr(own.folders[hierarchy], MARK, b"1")
    assert Cgroups("auto").lacks("pids") == ""


# --- on a node --------------------------------------------------------------------------------------------------

SECTION = '[plugins.guest]\nuses = "worker_guest:Guest"\nisolation = "process"\nmemory = "96Mi"\n'


@pytest.fixture
def node(own: OwnCgroups, short_path: Path) -> Iterator[ScratchNode]:
    one = ScratchNode(
        short_path,
        SECTION,
        supervisor='listen = ""\ncgroups = true\n',
        env={"PYTHONPATH": str(Path(__file__).parent)},
    )  # executed, and not forked: it has to be in the cgroup of this process
    try:
        yield one
    finally:
        one.kill()


def guest(node: ScratchNode) -> dict[str, Any]:
    (row,) = node.status()["plugins"]
    return dict(row)


def pid(node: ScratchNode) -> int:
    process = guest(node)["process"]
    return int(process["pid"]) if process else 0


@pytest.mark.whole
def test_cgroups_of_a_killed_daemon_are_swept_by_the_next_and_nothing_else_is(
    node: ScratchNode, memory: OwnCgroups
) -> None:
    node.start()
    (first,) = memory.workers()
    stranger = memory.of("memory") / "somebody"
    stranger.mkdir()
    node.kill()
    assert memory.workers() == [first]
    node.start()
    until(lambda: pid(node) != 0 and first not in memory.workers())
    assert len(memory.workers()) == 1
    assert stranger.exists()
    node.configure(SECTION.replace('memory = "96Mi"\n', ""))
    until(lambda: memory.workers() == [])


@pytest.mark.whole
def test_cgroups_of_a_daemon_that_lives_are_not_swept_by_another(node: ScratchNode, memory: OwnCgroups) -> None:
    node.start()
    before = memory.workers()
    Cgroups(True).prepare()
    assert memory.workers() == before
    assert within(pid(node)).count(PREFIX) == 1


@pytest.mark.whole
def test_a_daemon_that_is_stopped_leaves_no_cgroup(node: ScratchNode, memory: OwnCgroups) -> None:
    node.start()
    node.stop()
    assert memory.workers() == []


@pytest.mark.whole
def test_status_says_what_exceeded_its_memory(node: ScratchNode, memory: OwnCgroups) -> None:
    once = node.root / "once"
    node.configure(f'{SECTION}[plugins.guest.config]\nat = "inspect"\nhow = "leaks"\nonce = "{once}"\n')
    node.start()
    until(lambda: guest(node)["state"] == "running")
    asked = node.run("inspect", "guest")
    assert f"ended during inspect: {TOLD}" in asked.stderr
    until(lambda: guest(node)["restarts"] == 1 and guest(node)["state"] == "running")
    assert guest(node)["restarted"] == TOLD
