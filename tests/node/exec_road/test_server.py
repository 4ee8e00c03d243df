"""The socket: who may speak, how long and how much, and what is left behind."""

import asyncio
import json
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.own_descriptors import open_namespaces, room_for_descriptors, with_own_descriptors

from nodeplug import PluginError
from nodeplug.contract.netns import Netns
from nodeplug.exec.frame import HEADER, LIMIT, MAGIC, Frame, Reply
from nodeplug.exec.server import ExecServer
from nodeplug.hosting.runner import close_all
from nodeplug.testing import ExecRoad

pytestmark = pytest.mark.unprivileged

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}


async def echo(frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
    paths = [namespace.path for namespace in namespaces]
    close_all(namespaces)
    document = {"status": "Success", "argv": frame.argv, "stdin": len(frame.stdin), "namespaces": paths}
    return Reply(0, json.dumps(document).encode())


@pytest.fixture
def server(road: ExecRoad) -> ExecRoad:
    road.handlers = {"flex": echo, "control": echo}
    return road.start()


def converse(road: ExecRoad, data: bytes, fds: tuple[int, ...] = ()) -> Reply:
    """Send bytes as they are, and read the answer to its end."""
    with socket.socket(socket.AF_UNIX) as peer:
        peer.connect(str(road.socket))  # with a timeout, it would not wait for room in the backlog
        peer.settimeout(30)
        sent = socket.send_fds(peer, [data[:65536]], fds)
        if sent < len(data):
            peer.sendall(data[sent:])
        peer.shutdown(socket.SHUT_WR)
        answer = b""
        while part := peer.recv(1 << 16):
            answer += part
    return Reply.decode(answer)


def test_the_socket_has_its_final_mode_and_the_old_umask_is_back(server: ExecRoad) -> None:
    mask = os.umask(0o022)
    os.umask(mask)
    assert server.socket.stat().st_mode & 0o777 == 0o600
    assert mask != 0o177


def test_a_socket_that_a_killed_daemon_left_is_replaced(road: ExecRoad) -> None:
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(road.socket))
    road.handlers = {"control": echo}
    road.start()
    assert converse(road, Frame("control", "x").encode()).exit == 0


def test_a_live_socket_is_not_taken_over(server: ExecRoad) -> None:
    with pytest.raises(PluginError, match="another daemon listens"):
        asyncio.run(ExecServer(server.socket, {}).start())
    assert converse(server, Frame("control", "x").encode()).exit == 0


def test_a_file_in_the_way_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "exec.sock").write_text("precious")
    with pytest.raises(PluginError, match="is not a socket"):
        asyncio.run(ExecServer(tmp_path / "exec.sock", {}).start())
    assert (tmp_path / "exec.sock").read_text() == "precious"


def test_a_stopped_server_leaves_no_socket(server: ExecRoad) -> None:
    server.stop()
    assert not server.socket.exists()


def test_a_stopped_server_leaves_the_socket_of_its_successor(server: ExecRoad) -> None:
    server.socket.unlink()
    with socket.socket(socket.AF_UNIX) as successor:
        successor.bind(str(server.socket))
        server.stop()
        assert server.socket.exists()


@pytest.mark.node
@pytest.mark.usefixtures("no_leak")
def test_descriptors_become_namespaces(server: ExecRoad, netns: Path) -> None:
    fds = (os.open("/proc/self/ns/net", os.O_RDONLY), os.open(netns, os.O_RDONLY))
    try:
        reply = converse(server, Frame("control", "x", env={"CNI_NETNS": "/as/spelled"}).encode(), fds)
    finally:
        for fd in fds:
            os.close(fd)
    assert json.loads(reply.stdout)["namespaces"] == ["/proc/self/ns/net", "/as/spelled"]


@pytest.mark.usefixtures("no_leak")
def test_more_descriptors_than_two_are_dropped(server: ExecRoad) -> None:
    fds = [os.open("/proc/self/ns/net", os.O_RDONLY) for _ in range(9)]
    try:
        reply = converse(server, Frame("control", "x").encode(), tuple(fds))
    finally:
        for fd in fds:
            os.close(fd)
    assert len(json.loads(reply.stdout)["namespaces"]) <= 2


@pytest.mark.node
@pytest.mark.parametrize("received", [0, 1])
def test_a_call_whose_descriptors_are_lost_for_want_of_room_is_told_to_try_again(
    road: ExecRoad, netns: Path, received: int
) -> None:
    def call() -> Reply:
        before = open_namespaces()
        fds = (os.open("/proc/self/ns/net", os.O_RDONLY), os.open(netns, os.O_RDONLY))
        with road, room_for_descriptors(2 + received):  # the two ends of the connection come first
            reply = converse(road, Frame("cni", "x", env={"CNI_COMMAND": "VERSION"}).encode(), fds)
        for fd in fds:
            os.close(fd)
        assert open_namespaces() == before
        return reply

    reply = with_own_descriptors(call)
    assert (reply.exit, json.loads(reply.stdout)["code"]) == (1, 11)


@pytest.mark.usefixtures("no_leak")
def test_a_first_descriptor_that_is_no_namespace_is_refused(server: ExecRoad, tmp_path: Path) -> None:
    fds = (os.open(tmp_path, os.O_RDONLY), os.open("/proc/self/ns/net", os.O_RDONLY))
    try:
        reply = converse(server, Frame("cni", "x").encode(), fds)
    finally:
        for fd in fds:
            os.close(fd)
    assert (reply.exit, json.loads(reply.stdout)["code"]) == (1, 8)


def test_a_silent_client_is_dropped_and_costs_others_nothing(tmp_path: Path) -> None:
    road = ExecRoad(tmp_path, silence=0.3)
    road.handlers = {"control": echo}
    with road, socket.socket(socket.AF_UNIX) as silent:
        silent.settimeout(30)
        silent.connect(str(road.socket))
        assert converse(road, Frame("control", "x").encode()).exit == 0
        assert silent.recv(1) == b""


@pytest.mark.parametrize("part", [b"N", HEADER.pack(MAGIC, 10, 0, 0), Frame("cni", "x").encode()[:-1]])
def test_a_frame_that_breaks_off_is_an_error(server: ExecRoad, part: bytes) -> None:
    assert b"announced" in converse(server, part).stdout + converse(server, part).stderr


@pytest.mark.parametrize(
    ("style", "path"), [("cni", ("code", 6)), ("flex", ("status", "Failure"))], ids=["cni", "flex"]
)
def test_an_oversized_frame_is_answered_in_the_form_of_its_style(
    server: ExecRoad, style: str, path: tuple[str, object]
) -> None:
    args = style.encode() + b"\0x\0"
    data = HEADER.pack(MAGIC, len(args), 0, LIMIT) + args + b" " * LIMIT
    reply = converse(server, data)
    assert json.loads(reply.stdout)[path[0]] == path[1]
    assert reply.exit == (1 if style == "cni" else 0)


@pytest.mark.parametrize("junk", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 64, b"NPX1" + b"\xff" * 12])
def test_what_is_no_frame_is_refused_and_the_server_lives(server: ExecRoad, junk: bytes) -> None:
    assert converse(server, junk).exit == 1
    assert converse(server, Frame("control", "x").encode()).exit == 0


def test_an_unknown_style_is_told_which_are_known(server: ExecRoad) -> None:
    reply = converse(server, Frame("csi", "x").encode())
    assert (reply.exit, reply.stdout) == (1, b"")
    assert b"it knows: cni, control, flex" in reply.stderr


def test_the_sign_of_life_is_answered_by_the_server_itself(server: ExecRoad) -> None:
    # The bytes that installed entrypoints send.
    assert converse(server, b"NPX1\x08" + bytes(11) + b"alive\0-\0") == Reply()


def test_a_handler_that_raises_is_answered_and_the_server_lives(road: ExecRoad) -> None:
    async def fail(frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        raise TimeoutError("not a silent client")

    road.handlers = {"flex": fail, "control": echo}
    road.start()
    reply = converse(road, Frame("flex", "x").encode())
    assert json.loads(reply.stdout)["status"] == "Failure"
    assert b"TimeoutError" in reply.stdout
    assert converse(road, Frame("control", "x").encode()).exit == 0


STRANGER = """
import os, sys
os.setgid(65534); os.setuid(65534)
import socket
with socket.socket(socket.AF_UNIX) as peer:
    peer.connect(sys.argv[1])
    peer.sendall(bytes.fromhex(sys.argv[2]))
    data = b""
    while part := peer.recv(65536):
        data += part
    sys.stdout.buffer.write(data)
"""


@pytest.mark.node
@pytest.mark.parametrize("style", ["cni", "flex", "control"])
def test_another_user_is_refused_in_the_form_of_the_style(server: ExecRoad, style: str, tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:-2]):
        folder.chmod(folder.stat().st_mode | 0o011)
    server.socket.chmod(0o666)
    data = Frame(style, "x", stdin=b" " * 1000).encode().hex()
    done = subprocess.run(
        ["/usr/bin/python3", "-IS", "-c", STRANGER, str(server.socket), data], capture_output=True, check=False
    )
    reply = Reply.decode(done.stdout)
    assert b"user id 65534" in reply.stdout + reply.stderr
    if style != "control":
        assert json.loads(reply.stdout)["code" if style == "cni" else "status"] in {999, "Failure"}
    assert converse(server, Frame("control", "x").encode()).exit == 0


@pytest.fixture
def descriptors() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(16384, limits[1]), limits[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@pytest.mark.usefixtures("descriptors")
@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"", marks=pytest.mark.whole),
        pytest.param(b"N", marks=pytest.mark.whole),
        HEADER.pack(MAGIC, 10, 0, 0),
    ],
    ids=["silent", "one byte", "header"],
)
def test_clients_that_never_send_their_request_keep_nobody_waiting(tmp_path: Path, first: bytes) -> None:
    road = ExecRoad(tmp_path, silence=3600)  # none of them is dropped for its silence while this test runs
    road.handlers = {"control": echo}
    idle = [socket.socket(socket.AF_UNIX) for _ in range(2500)]
    with road:
        for peer in idle:
            peer.connect(str(road.socket))
            peer.sendall(first)
        for _ in range(3):
            assert converse(road, Frame("control", "x").encode()).exit == 0
    for peer in idle:
        peer.close()


@pytest.mark.usefixtures("descriptors")
def test_a_request_that_comes_late_is_served_although_silent_clients_came_after_it(tmp_path: Path) -> None:
    road = ExecRoad(tmp_path, silence=3600)
    road.handlers = {"control": echo}
    data = Frame("control", "x", stdin=b" " * 100).encode()
    with road, socket.socket(socket.AF_UNIX) as slow:
        slow.connect(str(road.socket))
        slow.settimeout(30)
        slow.sendall(data[:50])
        idle = [socket.socket(socket.AF_UNIX) for _ in range(2500)]
        for peer in idle:
            peer.connect(str(road.socket))
        slow.sendall(data[50:])
        assert slow.recv(1 << 16)
        for peer in idle:
            peer.close()


def test_a_request_beyond_the_bound_on_calls_is_told_to_try_again(
    road: ExecRoad, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside = threading.Semaphore(0)

    async def hang(frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        inside.release()
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr("nodeplug.exec.server.CALLS", 2)
    road.handlers = {"flex": hang, "control": echo}
    road.start()
    waiting = [socket.socket(socket.AF_UNIX) for _ in range(2)]
    for peer in waiting:
        peer.connect(str(road.socket))
        peer.sendall(Frame("flex", "x").encode())
        inside.acquire()
    reply = converse(road, Frame("cni", "x", env={"CNI_COMMAND": "VERSION"}).encode())
    assert (reply.exit, json.loads(reply.stdout)["code"]) == (1, 11)
    assert converse(road, Frame("control", "x").encode()).exit == 0
    for peer in waiting:
        peer.close()
