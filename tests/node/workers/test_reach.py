"""A plugin whose user does not reach its own folders: which folder, which user, and what to do."""

import os
import struct
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

if TYPE_CHECKING:
    from tests.other_user import OtherUser

SECTION = '[plugins.guest]\nuses = "worker_guest:Guest"\nisolation = "process"\nuser = "nobody"\n'
WRITES = 'config = { at = "start", how = "writes" }\n'


@pytest.fixture
def closed(short_path: Path) -> Path:
    """A folder that only its owner passes, in one that everybody does."""
    short_path.chmod(0o755)
    folder = short_path / "closed"
    folder.mkdir(mode=0o700)
    return folder


@pytest.fixture
def make_node(
    short_path: Path, closed: Path, other_user: "OtherUser", monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[str, str], ScratchNode]]:
    """Start a daemon that has one of its folders in the closed one."""
    monkeypatch.setattr(sys, "executable", other_user.python)
    path = os.pathsep.join(filter(None, [str(Path(__file__).parent), other_user.env.get("PYTHONPATH", "")]))
    made: list[ScratchNode] = []

    def make(key: str, more: str = "") -> ScratchNode:
        supervisor = f'listen = ""\n{key} = "/closed/own"\n'
        section, env = SECTION + more + WRITES, {"PYTHONPATH": path}
        made.append(ScratchNode(short_path, section, supervisor=supervisor, env=env, fork=True))
        made[0].start()
        return made[0]

    yield make
    for node in made:
        node.kill()


def guest(node: ScratchNode) -> Mapping[str, Any]:
    (row,) = node.status()["plugins"]
    return dict(row)


@pytest.mark.parametrize("key", ["state_dir", "run_dir"])
def test_a_user_that_does_not_reach_its_folder_is_told_and_served_once_it_does(
    key: str, closed: Path, make_node: Callable[[str], ScratchNode]
) -> None:
    node = make_node(key)
    until(lambda: guest(node)["state"] == "failed", found=lambda: guest(node))
    assert guest(node)["reason"] == (
        f"user nobody of plugin 'guest' cannot reach its folder {closed}/own/plugins/guest: {closed} of user root has "
        f"mode 700; run `chmod o+x {closed}`, or move `state_dir` or `run_dir` of [supervisor]"
    )
    assert closed.stat().st_mode & 0o777 == 0o700
    closed.chmod(0o701)
    until(lambda: guest(node)["state"] == "running", found=lambda: guest(node))
    assert (closed / "own" / "plugins" / "guest" / "written").stat().st_uid == 65534


def test_a_folder_of_the_users_group_lets_it_through(closed: Path, make_node: Callable[[str], ScratchNode]) -> None:
    closed.chmod(0o710)
    os.chown(closed, 0, 65534)
    node = make_node("state_dir")
    until(lambda: guest(node)["state"] == "running", found=lambda: guest(node))


def test_a_capability_that_passes_any_folder_lets_it_through(make_node: Callable[[str, str], ScratchNode]) -> None:
    node = make_node("state_dir", 'capabilities = ["CAP_DAC_OVERRIDE"]\n')
    until(lambda: guest(node)["state"] == "running", found=lambda: guest(node))


def test_a_folder_with_an_access_control_list_is_left_to_the_kernel(
    closed: Path, make_node: Callable[[str], ScratchNode]
) -> None:
    entries = [(0x01, 7, -1), (0x02, 1, 65534), (0x04, 0, -1), (0x10, 1, -1), (0x20, 0, -1)]  # acl(5): u, u:nobody, ...
    listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
    try:
        os.setxattr(closed, "system.posix_acl_access", listed)
    except OSError as error:
        pytest.skip(f"needs access control lists below /tmp: {error.strerror}")
    node = make_node("state_dir")
    until(lambda: guest(node)["state"] == "running", found=lambda: guest(node))
