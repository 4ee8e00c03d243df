"""A plugin's process that is killed with half of a call done: the next one finds the record and undoes it."""

import json
import socket
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.node.workers.mender import LINK
from tests.node.workers.test_networks import call
from tests.started import until_all_run

from nodeplug import mounts, unmount
from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ScratchNode
from nodeplug.testing.scratch_cni import ScratchCni


@pytest.fixture
def make_node(short_path: Path, tmp_path: Path) -> Iterator[Callable[[str], ScratchNode]]:
    """Start a daemon with a plugin that is killed once, inside a hook."""
    made: list[ScratchNode] = []

    def make(at: str) -> ScratchNode:
        config = f'{{ at = "{at}", once = "{tmp_path}/killed" }}'
        section = f'[plugins.guest]\nuses = "mender:Mender"\nisolation = "process"\nconfig = {config}\n'
        env = {"PYTHONPATH": str(Path(__file__).parent)}
        made.append(ScratchNode(short_path, section, supervisor='listen = ""\n', env=env, fork=True))
        made[0].start()
        until_all_run(made[0])
        return made[0]

    yield make
    for node in made:
        node.kill()
    for target in mounted_below(short_path):
        unmount(target, lazy=True)


def mounted_below(folder: Path) -> list[str]:
    return [one.target for one in reversed(mounts()) if Path(one.target).is_relative_to(folder)]


def flex(node: ScratchNode, verb: str, target: Path, *more: str) -> dict[str, str]:
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(node.paths.exec_socket))
        peer.sendall(Frame("flex", "/x/example~thing/thing", (verb, str(target), *more)).encode())
        reply = Reply.decode(b"".join(iter(partial(peer.recv, 1 << 16), b"")))
    answer: dict[str, str] = json.loads(reply.stdout)
    return answer


def seen(node: ScratchNode) -> str:
    return (node.paths.state / "plugins" / "guest" / "seen").read_text()


def records(node: ScratchNode) -> list[Path]:
    return list((node.paths.journal / "guest").iterdir())


@pytest.mark.parametrize(
    ("at", "record"), [("volume_stage", "stage mounting\n"), ("volume_publish", "publish binding\n")]
)
def test_a_mount_that_is_half_done_by_a_killed_process_is_undone_and_done_when_repeated(
    at: str, record: str, make_node: Callable[[str], ScratchNode]
) -> None:
    node = make_node(at)
    target = node.root / "pod"
    target.mkdir()
    mount = partial(flex, node, "mount", target, json.dumps({"name": "v"}))
    failed = mount()
    assert failed["status"] == "Failure"
    assert f"the process of plugin 'guest' ended during {at}: it was killed by SIGKILL; ask again" in failed["message"]
    until_all_run(node)
    assert (seen(node), records(node)) == (record, [])
    assert mounted_below(node.root) == []
    assert mount() == {"status": "Success"}
    assert (target / "whole").exists()
    assert (seen(node), records(node)) == (record, [])
    assert flex(node, "unmount", target) == {"status": "Success"}
    assert mounted_below(node.root) == []


def test_an_attachment_that_is_half_done_by_a_killed_process_is_undone_and_done_when_repeated(
    make_node: Callable[[str], ScratchNode], scratch: ScratchCni
) -> None:
    node, container = make_node("cni_add"), scratch.container().path
    failed = call(node, "ADD", container)
    assert failed["code"] == 11
    assert "the process of plugin 'guest' ended during cni_add: it was killed by SIGKILL; ask again" in str(failed)
    until_all_run(node)
    assert (seen(node), records(node)) == ("add linking\n", [])
    assert LINK not in links()
    assert call(node, "ADD", container)["interfaces"] == [{"name": LINK}]
    assert LINK in links()
    assert call(node, "DEL", container) == {}
    assert (LINK in links(), records(node)) == (False, [])


def links() -> set[str]:
    return {name for _, name in socket.if_nameindex()}
