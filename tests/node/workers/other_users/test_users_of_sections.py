"""The user that a section, the configuration or nobody names for a plugin, and whose folders are whose."""

import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.node.workers.other_users.rights import NET_ADMIN, NOBODY, capabilities, state

from nodeplug.hosting.plugin_users import USERS
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from tests.other_user import OtherUser

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
