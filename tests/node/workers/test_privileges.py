"""What a plugin's process gives up before its environment runs, and whose folders are whose."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import nodeplug as n
from nodeplug.config.privileges import CAPABILITIES
from nodeplug.hosting.plugin_users import USERS
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until
from nodeplug.worker import launching, spawning

if TYPE_CHECKING:
    from tests.conftest import OtherUser
    from tests.node.workers.conftest import Guests

Play = Callable[[Any], None]
NOBODY = 65534
NET_ADMIN = 1 << CAPABILITIES["CAP_NET_ADMIN"]
SETS = ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")


@pytest.fixture(autouse=True)
def reachable(other_user: "OtherUser", short_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the plugin's user execute Python and reach what a test makes; the checkout may be root's alone."""
    monkeypatch.setattr(sys, "executable", other_user.python)
    found = [str(Path(__file__).parent), other_user.env.get("PYTHONPATH", "")]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, found)))
    short_path.chmod(0o755)


def state(pid: int) -> Mapping[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return {name: text.strip() for name, _, text in (line.partition(":") for line in lines)}


def children(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for task in tasks for one in task.read_text(encoding="ascii").split()]


def oom_score(pid: int) -> int:
    return int(Path(f"/proc/{pid}/oom_score_adj").read_text(encoding="ascii"))


def capabilities(pid: int) -> set[int]:
    found = state(pid)
    return {int(found[name], 16) for name in SETS}


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
        (child,) = children(guests.pid())
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
        isolation = "thread" if uses.endswith("Guest") else "process"
        await guests.apply(guest=guests.section(uses, user="nobody", isolation=isolation))
        assert guests.state() == "refused"
        reason = guests.lifecycle.registry.slots["guest"].reason
        assert "plugin 'guest' runs as a thread of the daemon" in reason
        assert "for which `user` cannot be kept" in reason

    play(story)


# --- on a node --------------------------------------------------------------------------------------------------

SECTION = '[plugins.guest]\nuses = "worker_guest:Guest"\nisolation = "process"\n'


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    one = ScratchNode(short_path, SECTION, fork=True)
    try:
        yield one
    finally:
        one.kill()


def guest(node: ScratchNode) -> Mapping[str, Any]:
    (row,) = node.status()["plugins"]
    assert isinstance(row, dict)
    return row


def pid(node: ScratchNode) -> int:
    process = guest(node)["process"]
    return int(process["pid"]) if process else 0


def folders(node: ScratchNode) -> list[Path]:
    return [node.paths.state / "plugins" / "guest", node.paths.run / "plugins" / "guest"]


def owners(node: ScratchNode) -> set[int]:
    return {one.lstat().st_uid for folder in folders(node) for one in (folder, *folder.rglob("*"))}


@pytest.mark.whole
def test_no_process_of_another_user_outlives_a_daemon_that_is_killed(node: ScratchNode) -> None:
    node.configure(f'{SECTION}user = "nobody"\n')
    node.start()
    first = pid(node)
    os.kill(first, 19)  # even one that is stopped, and cannot see that its socket has ended
    node.kill()
    until(lambda: not Path(f"/proc/{first}").exists())


@pytest.mark.whole
def test_folders_belong_to_the_user_of_a_section_and_to_root_again_without_one(node: ScratchNode) -> None:
    node.start()
    for folder in folders(node):
        (folder / "deep").mkdir()
        (folder / "deep" / "file").touch()
        (folder / "link").symlink_to("/etc/passwd")
    assert owners(node) == {0}
    for user, owner in (("user = 'nobody'\n", NOBODY), ("", 0)):
        before = pid(node)
        node.configure(SECTION + user)
        until(lambda: pid(node) not in {0, before})  # noqa: B023 - it is asked in this very turn
        until(lambda: owners(node) == {owner})  # noqa: B023 - the former one is stopped first
        assert guest(node)["user"] == ("nobody" if owner else "root")
    assert Path("/etc/passwd").stat().st_uid == 0


@pytest.mark.whole
def test_groups_that_folders_of_root_were_given_stay(node: ScratchNode) -> None:
    for folder in folders(node):
        (folder / "volume").mkdir(parents=True)
        for one in (folder, folder / "volume"):
            os.chown(one, 0, 1234)
    node.start()
    assert {one.stat().st_gid for folder in folders(node) for one in (folder, folder / "volume")} == {1234}


def test_a_plugin_of_another_user_writes_into_its_own_folders_and_into_no_other(node: ScratchNode) -> None:
    node.configure(f'{SECTION}user = "nobody"\n[plugins.guest.config]\nat = "start"\nhow = "writes"\n')
    node.start()
    assert guest(node)["state"] == "running", guest(node)["reason"]
    assert all((folder / "written").stat().st_uid == NOBODY for folder in folders(node))
    assert node.paths.state.stat().st_mode & 0o777 == 0o711
    assert {one.stat().st_mode & 0o007 for one in node.paths.state.iterdir() if one.name != "plugins"} <= {0}


def test_folders_that_were_removed_are_made_again_for_their_user(node: ScratchNode) -> None:
    node.configure(f'{SECTION}user = "nobody"\n')
    node.start()
    state_folder, _ = folders(node)
    state_folder.rmdir()
    until(lambda: state_folder.is_dir() and state_folder.stat().st_uid == NOBODY)


@pytest.fixture
def unasked(short_path: Path) -> Iterator[ScratchNode]:
    """A node whose administrator has said nothing about users."""
    one = ScratchNode(short_path, SECTION, supervisor='listen = ""\nplugin_user = "own"', fork=True)
    try:
        yield one
    finally:
        one.kill()


def test_a_plugin_whose_section_names_no_user_has_one_of_its_own_without_rights(unasked: ScratchNode) -> None:
    other = SECTION.replace(".guest]", ".other]") + '[plugins.other.config]\nname = "b"\n'
    unasked.configure(f"{SECTION}{other}")
    unasked.start()
    rows = unasked.status()["plugins"]
    assert [row["state"] for row in rows] == ["running"] * 2
    users = [int(row["user"]) for row in rows]
    assert users[0] != users[1]
    for row, user in zip(rows, users, strict=True):
        found = state(row["process"]["pid"])
        assert user in USERS
        assert found["Uid"].split() == found["Gid"].split() == [str(user)] * 4
        assert (found["Groups"], found["NoNewPrivs"]) == ("", "1")
        assert capabilities(row["process"]["pid"]) == {0}
    assert owners(unasked) == {users[[row["name"] for row in rows].index("guest")]}
    assert f"; runs as {users[0]}: {rows[0]['name']}; runs as {users[1]}: " in unasked.run("check-config").stdout


@pytest.mark.whole
def test_a_plugin_keeps_its_own_user_when_the_daemon_starts_again(unasked: ScratchNode) -> None:
    unasked.start()
    user = guest(unasked)["user"]
    unasked.kill()
    unasked.start()
    assert guest(unasked)["user"] == user
    assert owners(unasked) == {int(user)}


@pytest.mark.whole
def test_root_is_asked_for_and_has_everything(unasked: ScratchNode) -> None:
    unasked.configure(f'{SECTION}user = "root"\n')
    unasked.start()
    found = state(pid(unasked))
    assert found["Uid"].split() == ["0"] * 4
    assert found["CapEff"] == state(unasked.pid)["CapEff"]
    assert "; runs as root: guest" in unasked.run("check-config").stdout


@pytest.mark.whole
def test_capabilities_without_a_user_go_to_its_own(unasked: ScratchNode) -> None:
    unasked.configure(f'{SECTION}capabilities = ["CAP_NET_ADMIN"]\n')
    unasked.start()
    found = state(pid(unasked))
    assert int(found["Uid"].split()[0]) in USERS
    assert capabilities(pid(unasked)) == {NET_ADMIN}


@pytest.mark.whole
def test_one_user_can_be_named_for_all_plugins_that_name_none(short_path: Path) -> None:
    node = ScratchNode(short_path, SECTION, supervisor='listen = ""\nplugin_user = "nobody"', fork=True)
    try:
        node.start()
        assert guest(node)["user"] == "nobody"
        assert state(pid(node))["Uid"].split() == [str(NOBODY)] * 4
    finally:
        node.kill()


@pytest.mark.whole
def test_folders_of_a_plugin_in_a_thread_stay_those_of_the_daemon(unasked: ScratchNode) -> None:
    unasked.configure(SECTION.replace('"process"', '"thread"'))
    unasked.start()
    assert owners(unasked) == {0}
    assert guest(unasked)["user"] == "root"


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


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"nobdy"', "'nobdy' is no user of this node; make it with useradd(8), or write a number"),
        ("54321", "user 54321 is not in passwd(5), so its group is not known; make it with useradd(8)"),
        ('""', "is empty; write 'own', or a user of this node, such as 'root'"),
    ],
)
def test_a_user_for_all_plugins_that_this_node_does_not_know_is_a_mistake(
    value: str, said: str, short_path: Path
) -> None:
    done = ScratchNode(short_path, SECTION, supervisor=f"plugin_user = {value}", fork=True).run("check-config")
    assert done.returncode == 1
    assert said in done.stderr


def test_status_and_check_config_say_who_runs_as_root(node: ScratchNode) -> None:
    node.start()
    assert f"root, process {pid(node)}" in " ".join(node.run("status").stdout.split())
    assert "; runs as root: guest" in node.run("check-config").stdout


@pytest.mark.whole
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('user = "nobdy"', "'nobdy' is no user of this node; make it with useradd(8), or write a number"),
        ("user = 54321", "user 54321 is not in passwd(5), so its group is not known; add `group`"),
        ('group = "nogroup"', "names a group without a user; add `user`"),
        ('user = "nobody"\ngroup = "nogrup"', "'nogrup' is no group of this node"),
        ('capabilities = ["CAP_NET_ADMN"]', "'CAP_NET_ADMN' is no capability; did you mean \"CAP_NET_ADMIN\"?"),
    ],
)
def test_what_this_node_does_not_know_is_a_mistake_of_the_configuration(
    line: str, said: str, node: ScratchNode
) -> None:
    node.configure(f"{SECTION}{line}\n")
    done = node.run("check-config")
    assert done.returncode == 1
    assert said in done.stderr


def test_who_is_not_root_is_told_that_nothing_can_be_given_up(node: ScratchNode, other_user: "OtherUser") -> None:
    node.configure(f'{SECTION}user = "nobody"\n')
    command = [*other_user.prefix, other_user.python, *node.command("check-config")[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
    assert done.returncode == 1
    assert (
        "it cannot give up capabilities: Operation not permitted; only root with that right can start it" in done.stderr
    )
