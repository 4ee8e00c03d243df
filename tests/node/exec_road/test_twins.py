"""The compiled entrypoints say the same as the scripts, to the byte: to their caller and to the daemon.

One thing they do that a script cannot: they hide their arguments.
"""

import asyncio
import os
import re
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Netns
from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ExecRoad

CALL = {
    "HOME": "/root",
    "CNI_COMMAND": "ADD",
    "CNI_CONTAINERID": "c1",
    "CNI_NETNS": "/proc/self/ns/net",
    "CNI_IFNAME": "eth0",
    "CNI_ARGS": "",
    "CNI_ODD": "a=b\u00ff\udc80",
    "CNIX": "stays",
    "BAGGAGE": "goes",
    "TRACEPARENT": "00-1-2-01",
    "TRACEPARENTS": "stay",
}
LIMIT = 4 << 20

pytestmark = pytest.mark.usefixtures("has_compiler")


class Twins:
    """Both entrypoints, executed in turn under one path."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.roads = [ExecRoad(folder), ExecRoad(folder, native=True)]

    def cni(self, env: Mapping[str, str | bytes], stdin: bytes = b"{}") -> list[Any]:
        """Execute both as CNI plugins; what each left in the spool is part of how it ended."""
        return [(self._execute(path, [], env, stdin), self._spooled()) for path in self.paths(flex=False)]

    def flex(self, *argv: str | bytes) -> list[Any]:
        """Execute both as FlexVolume drivers."""
        return [self._execute(path, argv, {}, b"") for path in self.paths(flex=True)]

    def paths(self, *, flex: bool) -> Iterator[Path]:
        for road in self.roads:
            yield road.flex_script(self.folder, "driver") if flex else road.script("test")
            (self.folder / "driver" if flex else road.bin / "test").unlink()

    def _execute(
        self, path: Path, argv: Sequence[str | bytes], env: Mapping[str, str | bytes], stdin: bytes
    ) -> tuple[int, bytes, bytes]:
        done = subprocess.run([path, *argv], input=stdin, capture_output=True, env=env, timeout=60, check=False)
        return done.returncode, done.stdout, done.stderr

    def _spooled(self) -> list[bytes]:
        kept = []
        for path in sorted(self.roads[0].spool.folder.glob("*")):
            assert re.fullmatch(r"\d{20}-\d+\.frame", path.name)
            kept.append(path.read_bytes())
            path.unlink()
        return kept

    @contextmanager
    def daemon(self, answer: bytes) -> Iterator[list[tuple[bytes, list[str]]]]:
        """Give both one answer; yields what was received: the bytes, and what the descriptors are."""
        received: list[tuple[bytes, list[str]]] = []
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(self.roads[0].socket))
            server.listen()
            thread = threading.Thread(target=lambda: received.extend(serve_one(server, answer) for _ in self.roads))
            thread.start()
            yield received
            thread.join()


def serve_one(server: socket.socket, answer: bytes) -> tuple[bytes, list[str]]:
    peer, _ = server.accept()
    with peer:
        data, fds, _, _ = socket.recv_fds(peer, 1 << 16, 8)
        while len(data) < 16 or len(data) < 16 + sum(int.from_bytes(data[at : at + 4], "little") for at in (4, 8, 12)):
            data += peer.recv(1 << 20)
        links = [os.readlink(f"/proc/self/fd/{fd}") for fd in fds]
        for fd in fds:
            os.close(fd)
        peer.sendall(answer)
    return data, links


@pytest.fixture
def twins(road_folder: Path) -> Twins:
    return Twins(road_folder)


@pytest.mark.parametrize(
    "env",
    [
        {},
        {"TRACEPARENT": "x"},
        {"CNI_COMMAND": "VERSION"},
        {**CALL, "CNI_COMMAND": "STATUS"},
        {**CALL, "CNI_COMMAND": "DEL"},
        {"CNI_COMMAND": "DEL"},
        {**CALL, "CNI_COMMAND": ""},
    ],
    ids=["nothing", "no-cni", "version", "status", "del", "bare-del", "no-command"],
)
def test_twins_answer_alike_without_a_daemon(twins: Twins, env: dict[str, str]) -> None:
    script, compiled = twins.cni(env)
    assert compiled == script


@pytest.mark.parametrize("command", [{}, {"CNI_COMMAND": ""}], ids=["unset", "empty"])
def test_without_a_command_twins_say_what_they_are(twins: Twins, command: dict[str, str]) -> None:
    without = {name: value for name, value in CALL.items() if name != "CNI_COMMAND"}
    for done, _ in twins.cni({**without, **command}):
        assert (done[0], done[1]) == (0, b"")
        assert b"CNI protocol versions supported: 0.1.0, 0.2.0" in done[2]


def test_twins_tell_alike_that_a_del_cannot_be_kept(twins: Twins) -> None:
    twins.roads[0].spool.folder.write_text("in the way")
    script, compiled = twins.cni({**CALL, "CNI_COMMAND": "DEL"})
    assert compiled[0] == script[0]
    assert b"cannot be kept" in compiled[0][1]


@pytest.mark.parametrize("excess", [0, 1])
def test_twins_draw_the_limit_of_a_request_at_the_same_byte(twins: Twins, excess: int) -> None:
    args = len(b"cni\0") + len(os.fsencode(twins.roads[0].bin / "test")) + 1
    stdin = b" " * (LIMIT - args - len(b"CNI_COMMAND=STATUS\0") + excess)
    script, compiled = twins.cni({"CNI_COMMAND": "STATUS"}, stdin)
    assert compiled == script
    assert (b'"code":7' in script[0][1]) is bool(excess)


@pytest.mark.parametrize("netns", ["/proc/self/ns/net", "/does/not/exist", "", None, "fifo"])
def test_twins_send_the_same_frame_and_descriptors(twins: Twins, netns: str | None, tmp_path: Path) -> None:
    if netns == "fifo":  # opened as it is: the daemon tells what is a namespace, and nobody waits for a writer
        netns = str(tmp_path / "fifo")
        os.mkfifo(netns)
    env = {**CALL, "CNI_NETNS": netns} if netns is not None else {k: v for k, v in CALL.items() if k != "CNI_NETNS"}
    with twins.daemon(Reply(0, b"{}", b"said").encode()) as received:
        script, compiled = twins.cni(env, b'{"a": 1}' * 100_000)
    assert compiled == script == ((0, b"{}", b"said"), [])
    assert received[1] == received[0]
    assert len(received[0][1]) == (2 if netns and Path(netns).exists() else 1)


@pytest.mark.parametrize(
    "answer",
    [
        Reply(0).encode(),
        Reply(255, b"x" * 300_000, b"y" * 300_000).encode(),
        Reply(3, b"out", b"err").encode() + b"more than announced",
        Reply(0, b"out", b"err").encode()[:-1],
        b"\0\xff\xff\xff\xff\xff\xff\xff\xff",
        b"",
    ],
    ids=["empty", "large", "more", "less", "enormous", "nothing"],
)
def test_twins_print_the_same_of_an_answer(twins: Twins, answer: bytes) -> None:
    with twins.daemon(answer):
        script, compiled = twins.cni({**CALL, "CNI_COMMAND": "DEL"})
    assert compiled == script


@pytest.mark.parametrize(
    "argv", [(), ("mount",), ("init",), ("init", "x"), ("mount", b"\xff\n", "", '{"a":"b"}')], ids=str
)
def test_drivers_answer_alike_without_a_daemon(twins: Twins, argv: tuple[str, ...]) -> None:
    script, compiled = twins.flex(*argv)
    assert compiled == script


def test_drivers_answer_init_alike_from_their_file(twins: Twins, tmp_path: Path) -> None:
    (tmp_path / "capabilities.json").write_bytes(b'{"status":"Success"}' * 5000)
    script, compiled = twins.flex("init")
    assert compiled == script
    assert len(script[1]) == 1 << 16


@pytest.mark.parametrize(
    "answer",
    [Reply(0, b"{}").encode(), Reply(9, b"{}", b"never").encode(), Reply(0).encode(), Reply(0, b"{}").encode()[:-1]],
    ids=["whole", "noisy", "empty", "less"],
)
def test_drivers_send_the_same_frame_and_print_the_same(twins: Twins, answer: bytes) -> None:
    with twins.daemon(answer) as received:
        script, compiled = twins.flex("mount", b"/\xff", "", '{"a":"b"}')
    assert compiled == script
    assert received[1] == received[0]
    assert (script[0], script[2]) == (0, b"")


def test_the_path_that_is_sent_is_the_executed_one_whatever_argv_says(twins: Twins) -> None:
    with twins.daemon(Reply(0).encode()) as received:
        for path in twins.paths(flex=False):
            subprocess.run(["another"], executable=path, env=CALL, stdin=subprocess.DEVNULL, check=True)
    assert received[1] == received[0]
    assert os.fsencode(twins.roads[0].bin / "test") in received[0][0]


def test_the_compiled_driver_shows_its_arguments_to_nobody_while_it_waits(road: ExecRoad, tmp_path: Path) -> None:
    asked, secret = threading.Event(), '{"kubernetes.io/secret/password": "aHVudGVyMg=="}'

    async def hang(frame: Frame, namespaces: tuple[Netns, ...]) -> Reply:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    road.handlers = {"flex": hang}
    road.start()
    path = road.flex_script(tmp_path, "driver")
    with subprocess.Popen([path, "mount", "/target", secret], stdout=subprocess.DEVNULL) as waiting:
        assert asked.wait(30)
        shown = Path(f"/proc/{waiting.pid}/cmdline").read_bytes()
        waiting.kill()
    assert str(path).encode() in shown
    assert b"aHVudGVyMg" not in shown
