"""What a plugin's process gives up before its environment runs."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.children import children_of
from tests.node.workers.other_users.rights import NET_ADMIN, NOBODY, capabilities, state

import nodeplug as n
from nodeplug.worker import launching, spawning

if TYPE_CHECKING:
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))


@pytest.fixture
def in_a_group() -> Iterator[None]:
    before = os.getgroups()
    os.setgroups([*before, 4321])
    yield
    os.setgroups(before)


@pytest.mark.usefixtures("in_a_group")
def test_a_process_runs_as_the_user_of_its_section_without_groups_or_capabilities(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user="nobody"))
        found = state(guests.pid())
        assert found["Uid"].split() == found["Gid"].split() == [str(NOBODY)] * 4
        assert found["Groups"] == ""
        assert found["NoNewPrivs"] == "1"
        assert capabilities(guests.pid()) == {0}
        assert (await guests.call("device_allocate")).env == {"PID": str(guests.pid())}

    play(story)


def test_a_process_has_only_the_capabilities_that_its_section_names(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        for user in ("nobody", "root"):
            await guests.apply(guest=guests.section(user=user, capabilities=("CAP_NET_ADMIN",)))
            found = state(guests.pid())
            assert capabilities(guests.pid()) - {0} == {NET_ADMIN}
            assert {found[name] for name in ("CapPrm", "CapEff", "CapBnd")} == {f"{NET_ADMIN:016x}"}
            assert found["NoNewPrivs"] == "1"

    play(story)


def test_a_child_of_a_process_has_its_capabilities_and_its_user(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        named = guests.section(user="nobody", capabilities=("CAP_NET_ADMIN",), at="health", how="starts a child")
        await guests.apply(guest=named)
        await guests.call("health")
        (child,) = children_of(guests.pid())
        assert capabilities(child) == {NET_ADMIN}
        assert state(child)["Uid"].split() == [str(NOBODY)] * 4

    play(story)


@pytest.mark.whole
def test_a_group_of_its_own_and_numbers_are_taken(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user=4321, group=1234))
        found = state(guests.pid())
        assert (found["Uid"].split()[0], found["Gid"].split()[0]) == ("4321", "1234")

    play(story)


@pytest.mark.parametrize("user", ["nobody", pytest.param("", marks=pytest.mark.whole)])
def test_a_process_has_the_priority_of_its_section(user: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user=user, nice=-3), other=guests.section(name="b"))
        assert os.getpriority(os.PRIO_PROCESS, guests.pid()) == -3
        assert os.getpriority(os.PRIO_PROCESS, guests.pid("other")) == 0
        assert state(guests.pid())["NoNewPrivs"] == ("1" if user else "0")

    play(story)


def test_a_process_of_another_user_ends_before_the_daemon_when_memory_is_short(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user="nobody"))
        assert oom_score(guests.pid()) >= 100

    play(story)


def test_nothing_of_the_environment_of_a_plugin_runs_with_the_rights_of_the_daemon(
    play: Play, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = short_path / "who.json"
    note.touch()
    note.chmod(0o666)
    text = f"import json, os\nopen({str(note)!r}, 'a').write(json.dumps([os.geteuid(), os.getgroups()]) + chr(10))\n"
    (short_path / "sitecustomize.py").write_text(text, encoding="ascii")
    monkeypatch.setenv("PYTHONPATH", f"{short_path}{os.pathsep}{os.environ['PYTHONPATH']}")
    monkeypatch.syspath_prepend(str(short_path))

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user="nobody"))
        assert [json.loads(line) for line in note.read_text(encoding="ascii").splitlines()] == [[NOBODY, []]]

    play(story)


@pytest.mark.whole
def test_a_user_has_no_more_tasks_than_a_section_says(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        limited = guests.section(user=4321, group=1234, tasks=30, at="health", how="starts threads")
        await guests.apply(guest=limited, other=guests.section(name="b"))
        with pytest.raises(n.Exhausted, match=r"can't start new thread after [12][0-9]"):
            await guests.call("health")
        await guests.call("health", name="other")

    play(story)


def test_a_python_that_its_user_may_not_execute_is_told(
    play: Play, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short_path / "closed").mkdir(mode=0o700)
    (short_path / "closed" / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(short_path / "closed" / "python"))

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user="nobody"), other=guests.section(name="b"))
        reason = guests.lifecycle.registry.slots["guest"].reason
        assert f"its user may not execute {short_path}/closed/python: Permission denied" in reason
        assert guests.state("other") == "running"

    play(story)


def test_a_refusal_is_told_where_not_even_the_standard_library_can_be_read() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    program = '/closed/"\\é\udcff/python'
    words = [str(theirs.fileno()), str(os.getpid()), "-", "-", "-", "-", "-", "-", "-", program]
    closed = "import sys; code = compile(open(sys.argv[1]).read(), sys.argv[1], 'exec')\n"
    closed += "import ctypes, os, signal; sys.argv[:2] = ['launching.py']; sys.path.clear()\n"
    with ours, theirs:
        command = [sys.executable, "-IS", "-c", f"{closed}exec(code)", launching.__file__, *words]
        subprocess.run(command, check=False, pass_fds=[theirs.fileno()], capture_output=True)
        theirs.close()
        told = json.loads(ours.recv(4096))
    assert told["op"] == "refusal"
    assert told["message"].startswith(f"its user may not execute {program}: No such file or directory; install it")


def test_a_nodeplug_that_its_user_may_not_read_is_told(
    play: Play, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = short_path / "closed"
    closed.mkdir(mode=0o700)
    shutil.copy(launching.__file__, closed)
    monkeypatch.setattr(spawning, "_HERE", closed)

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user="nobody"))
        assert f"its user may not read nodeplug at {closed}" in guests.lifecycle.registry.slots["guest"].reason

    play(story)


@pytest.mark.parametrize("uses", ["worker_guest:Guest", "worker_guest:Policy"])
def test_a_plugin_that_runs_as_a_thread_is_refused_if_its_section_names_a_user(uses: str, play: Play) -> None:
    async def story(guests: "Guests") -> None:
        isolation = "thread" if uses.endswith("Guest") else None
        await guests.apply(guest=guests.section(uses, user="nobody", isolation=isolation))
        assert guests.state() == "refused"
        reason = guests.lifecycle.registry.slots["guest"].reason
        assert "plugin 'guest' runs as a thread of the daemon" in reason
        assert "for which `user` cannot be kept" in reason

    play(story)


def test_what_the_kernel_refuses_a_plugin_says_as_whom_it_runs(play: Play) -> None:
    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section(user=4321, group=1234, at="health", how="is not allowed"))
        hint = "its process runs as user 4321; `user` and `capabilities` of its section say what it may do"
        with pytest.raises(n.PluginError, match=f"Operation not permitted .{re.escape(hint)}"):
            await guests.call("health")

    play(story)


def test_a_module_in_a_folder_that_its_user_may_not_read_says_as_whom_it_was_looked_for(
    play: Play, short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = short_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "hidden_plugin.py").write_text("class Hidden:\n    pass\n")
    monkeypatch.syspath_prepend(str(closed))

    async def story(guests: "Guests") -> None:
        await guests.apply(guest=guests.section("hidden_plugin:Hidden", user=4321, group=1234))
        reason = guests.lifecycle.registry.slots["guest"].reason
        assert "No module named 'hidden_plugin'" in reason
        assert "(its process runs as user 4321;" in reason

    play(story)
