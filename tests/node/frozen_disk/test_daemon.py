"""The daemon and its CNI calls while a filesystem with one of its folders is frozen."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.node.frozen_disk.freezing import NET, freeze, thaw, thaw_if_frozen

from nodeplug.testing import ScratchNode
from nodeplug.testing.scratch_cni import new_netns
from nodeplug.testing.waiting import until


def entrypoint(
    node: ScratchNode, verb: str, container: str = "", netns: str = ""
) -> "subprocess.CompletedProcess[bytes]":
    env = {"CNI_COMMAND": verb, "CNI_PATH": str(node.paths.cni_bin), "PATH": "/usr/bin:/bin"}
    if container:
        env |= {"CNI_CONTAINERID": container, "CNI_IFNAME": "eth0"}
    if verb == "ADD" and not netns:
        with closing(new_netns()) as own:
            return call(node, env | {"CNI_NETNS": own.path})
    return call(node, env | {"CNI_NETNS": netns})


def call(node: ScratchNode, env: dict[str, str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [node.paths.cni_bin / "nodeplug-net"],
        env=env,
        input=json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-net"}).encode(),
        capture_output=True,
        check=False,
    )


@pytest.mark.whole
def test_a_daemon_starts_and_serves_on_a_frozen_state_folder(node: ScratchNode, disk: Path) -> None:
    node.kill()
    freeze(disk)
    node.start()
    assert entrypoint(node, "STATUS").returncode == 0
    thaw(disk)
    until(lambda: bool(node.status()["ready"]))


def test_a_daemon_starts_and_serves_beside_a_frozen_folder_of_volume_drivers(
    make_disk: Callable[[str], Path], node: ScratchNode
) -> None:
    node.kill()
    drivers = make_disk(str(node.paths.flexvolume.relative_to(node.root)))
    node.configure('[plugins.net]\nuses = "net:Net"\n[plugins.tmpfs]\n')
    node.start()
    assert list(drivers.glob("*/tmpfs"))
    node.kill()
    freeze(drivers)
    try:
        node.start()
        assert entrypoint(node, "STATUS").returncode == 0
    finally:
        thaw(drivers)


@pytest.mark.whole
def test_control_and_status_are_answered_while_the_disk_of_the_state_folder_is_frozen(
    node: ScratchNode, disk: Path
) -> None:
    freeze(disk)
    until(lambda: "state folder" in node.status()["reasons"])
    done = entrypoint(node, "STATUS")
    assert done.returncode == 0, done.stdout
    thaw(disk)
    until(lambda: bool(node.status()["ready"]))


def is_healthy(port: int) -> bool:
    """Ask as kubelet's probe does.

    Raises:
        TimeoutError: nobody answers.
    """
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
        return bool(answer.status == 200)


def test_probes_are_answered_while_the_folder_of_the_exec_socket_is_frozen(
    make_disk: Callable[[str], Path], short_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    folder = make_disk("run/nodeplug")
    node = ScratchNode(short_path, "", supervisor=f'listen = "127.0.0.1:{port}"\n', fork=True)
    node.start()
    try:
        os.kill(node.pid, signal.SIGSTOP)  # else it could make the socket anew before the folder is frozen
        node.paths.exec_socket.unlink()
        freeze(folder)
        os.kill(node.pid, signal.SIGCONT)
        until(lambda: is_healthy(port) and "folder of the exec socket does not answer" in node.log)
        assert is_healthy(port)
        thaw(folder)
        until(lambda: "has been recreated" in node.log)
        assert node.status()["plugins"] == []
    finally:
        thaw_if_frozen(folder)
        node.kill()


def test_a_deferred_del_that_cannot_be_removed_from_a_frozen_disk_holds_up_nobody_else(
    node: ScratchNode, disk: Path, works: Path
) -> None:
    node.kill()
    assert entrypoint(node, "DEL", "c1").returncode == 0
    node.start()
    until(lambda: node.status()["spool"] == 1)
    freeze(disk)
    works.touch()  # the next replay succeeds, and its file cannot be removed
    until(lambda: "does not answer" in node.status()["reasons"].get("deferred DELs", ""))
    assert entrypoint(node, "STATUS").returncode == 0
    refused = json.loads(entrypoint(node, "ADD", "c1").stdout)
    assert (refused["code"], "deferred DELs does not answer" in refused["msg"]) == (11, True)
    thaw(disk)
    until(lambda: bool(node.status()["ready"]))
    until(lambda: not list((disk / "spool").glob("*.frame")))
    assert entrypoint(node, "ADD", "c1").returncode == 0


@pytest.fixture
def records(make_disk: Callable[[str], Path], node: ScratchNode, works: Path) -> Path:
    """The folder of attachment records, on a disk of its own."""
    node.kill()
    folder = make_disk("run/nodeplug/attachments")
    works.touch()
    node.start()
    return folder


def test_the_record_of_an_attachment_goes_when_the_disk_that_refused_to_forget_it_answers_again(
    records: Path, node: ScratchNode
) -> None:
    with closing(new_netns()) as netns:  # which lives: else the daemon would end the attachments by itself
        for container in ("c1", "c2"):
            assert entrypoint(node, "ADD", container, netns.path).returncode == 0
        freeze(records)
        assert [entrypoint(node, "DEL", container).returncode for container in ("c1", "c2")] == [0, 0]
        thaw(records)
        until(lambda: not list(records.glob("*.json")))


def test_a_del_is_answered_for_good_although_the_daemon_is_killed_while_the_disk_of_its_record_hangs(
    records: Path, node: ScratchNode
) -> None:
    with closing(new_netns()) as netns:  # which lives: else the daemon would end the attachment by itself
        assert entrypoint(node, "ADD", "c1", netns.path).returncode == 0
        (record,) = records.glob("*.json")
        content = record.read_bytes()
        freeze(records)
        assert entrypoint(node, "DEL", "c1").returncode == 0
        os.kill(node.pid, signal.SIGKILL)
        thaw(records)
        node.kill()
        record.write_bytes(content)  # as if something else than this very removal had waited for the disk
        node.start()
        until(lambda: not record.exists())


def test_a_killed_daemon_that_a_disk_still_holds_gives_way_to_the_next_one(
    records: Path, node: ScratchNode, short_path: Path, code: Path
) -> None:
    with closing(new_netns()) as netns:
        assert entrypoint(node, "ADD", "c1", netns.path).returncode == 0
        freeze(records)
        assert entrypoint(node, "DEL", "c1").returncode == 0  # one of its threads waits for the disk now
    os.kill(node.pid, signal.SIGKILL)
    until(lambda: "\nState:\tZ" in Path(f"/proc/{node.pid}/status").read_text())
    supervisor = 'listen = ""\ninstall = true\nnative_entrypoints = false\n'
    following = ScratchNode(short_path, NET, supervisor=supervisor, env={"PYTHONPATH": str(code)}, fork=True)
    try:
        following.start()
        assert entrypoint(following, "STATUS").returncode == 0
        assert node.running
    finally:
        thaw(records)
        following.kill()
