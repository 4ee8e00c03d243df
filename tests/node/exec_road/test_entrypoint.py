"""What an entrypoint of CNI does by itself: what it sends, for how long it waits, and what it answers alone."""

import json
import os
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniAdd, CniClaim, CniDel, CniResult, hookimpl
from nodeplug.exec.frame import Frame, Reply
from nodeplug.testing import ExecRoad

pytestmark = pytest.mark.parametrize("road", ["script", "compiled"], indirect=True)

Env = Callable[..., dict[str, str]]
Impatience = Callable[..., None]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
IMPATIENT = pytest.mark.xdist_group("impatient-entrypoints")
"""One process compiles each of them once."""


class Plugin:
    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("test")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        return CniResult()

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        """Nothing was made."""


@contextmanager
def listener(road: ExecRoad, answer: Callable[[socket.socket], Any]) -> Iterator[None]:
    """A daemon that accepts one caller and does what the test says."""
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(road.socket))
        server.listen()

        def serve() -> None:
            peer, _ = server.accept()
            with peer:
                answer(peer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


def spooled(road: ExecRoad) -> list[Path]:
    return sorted(road.spool.folder.iterdir()) if road.spool.folder.exists() else []


def test_version_is_answered_without_daemon_and_without_stdin(road: ExecRoad) -> None:
    read, write = os.pipe()  # never written to: a reader would hang
    try:
        done = subprocess.run(
            [str(road.script("test"))], stdin=read, capture_output=True, env={"CNI_COMMAND": "VERSION"}, check=True
        )
    finally:
        os.close(read)
        os.close(write)
    assert json.loads(done.stdout) == {"cniVersion": "1.1.0", "supportedVersions": VERSIONS}
    assert (done.returncode, done.stderr) == (0, b"")


def test_without_any_cni_variable_it_says_what_it_is(road: ExecRoad) -> None:
    done = road.call("test", {}, b"")
    assert (done.status, done.stdout) == (0, b"")
    assert done.stderr.decode().endswith(f"CNI protocol versions supported: {', '.join(VERSIONS)}\n")


@IMPATIENT
@pytest.mark.parametrize("verb", ["ADD", "CHECK", "GC", "FLY"])
def test_a_call_waits_for_the_daemon_and_then_says_try_again(
    road: ExecRoad, env: Env, impatient: Impatience, verb: str
) -> None:
    impatient(patience=0)
    done = road.call("test", env(verb), CONFIG)
    assert (done.status, done.document["code"], done.stderr) == (1, 11, b"")


def test_an_add_that_waits_is_served_by_the_daemon_that_comes_up(road: ExecRoad, env: Env) -> None:
    road.load("tested", Plugin())
    process = subprocess.Popen(
        [str(road.script("test"))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=env("ADD")
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(CONFIG).encode())
    process.stdin.close()
    process.stdin = None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    road.start()
    out, _ = process.communicate(timeout=30)
    assert (process.returncode, json.loads(out)["cniVersion"]) == (0, "1.0.0")


@IMPATIENT
def test_status_without_daemon_is_50_at_once(road: ExecRoad, env: Env, impatient: Impatience) -> None:
    impatient(patience=1000, haste=0.5)
    done = road.call("test", env("STATUS"), CONFIG)
    assert (done.status, done.document["code"]) == (1, 50)


def test_del_without_daemon_is_kept_and_succeeds(road: ExecRoad, env: Env) -> None:
    done = road.call("test", env("DEL", TRACEPARENT="00-1-2-01", SECRET="x"), CONFIG)
    assert (done.status, done.stdout) == (0, b"")
    (path,) = spooled(road)
    frame = Frame.decode(path.read_bytes())
    assert (frame.style, frame.name, json.loads(frame.stdin)) == ("cni", "test", CONFIG)
    assert frame.env == env("DEL", TRACEPARENT="00-1-2-01")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_del_that_cannot_be_kept_is_an_error(road: ExecRoad, env: Env) -> None:
    road.spool.folder.write_text("in the way")
    done = road.call("test", env("DEL"), CONFIG)
    assert (done.status, done.document["code"]) == (1, 11)
    assert "cannot be kept" in done.document["msg"]


def test_an_oversized_configuration_is_refused_without_sending(road: ExecRoad, env: Env) -> None:
    done = road.call("test", env("ADD"), b" " * (5 << 20))
    assert (done.status, done.document["code"]) == (1, 7)


def test_closed_stdin_is_an_io_error(road: ExecRoad, env: Env) -> None:
    done = subprocess.run(
        ["sh", "-c", f"exec {road.script('test')} <&-"], capture_output=True, env=env("ADD"), check=False
    )
    assert json.loads(done.stdout)["code"] == 5


def test_closed_stdout_fails_the_add(road: ExecRoad, env: Env) -> None:
    road.load("tested", Plugin())
    road.start()
    done = subprocess.run(
        ["sh", "-c", f"exec {road.script('test')} >&-"],
        input=json.dumps(CONFIG).encode(),
        stderr=subprocess.PIPE,
        env=env("ADD"),
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("part", [b"", b"\0\x05", b"\0\x05\0\0\0\0\0\0\0{"])
def test_an_answer_that_breaks_off_is_11_for_add(road: ExecRoad, env: Env, part: bytes) -> None:
    def break_off(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(part)

    with listener(road, break_off):
        done = road.call("test", env("ADD"), CONFIG)
    assert (done.status, done.document["code"]) == (1, 11)


def test_a_del_whose_answer_breaks_off_is_kept(road: ExecRoad, env: Env) -> None:
    with listener(road, lambda peer: peer.recv(1 << 16)):
        assert road.call("test", env("DEL"), CONFIG).status == 0
    assert len(spooled(road)) == 1


@IMPATIENT
def test_a_frozen_daemon_hangs_nobody(road: ExecRoad, env: Env, impatient: Impatience) -> None:
    impatient(patience=1)
    thaw = threading.Event()
    with listener(road, lambda _: thaw.wait(30)):
        done = road.call("test", env("ADD"), CONFIG)
        thaw.set()
    assert (done.status, done.document["code"]) == (1, 11)
    assert "it is stopped, or hangs" in done.document["msg"]


def test_a_daemon_with_a_full_backlog_is_waited_for(road: ExecRoad, env: Env) -> None:
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as first:
        server.bind(str(road.socket))
        server.listen(0)
        first.connect(str(road.socket))
        with subprocess.Popen(
            [road.script("test")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env("DEL")
        ) as process:
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(0.2)
            server.accept()[0].close()
            peer, _ = server.accept()
            with peer:
                peer.recv(1 << 16)
                peer.sendall(Reply(0, b"served").encode())
            assert process.communicate(timeout=30)[0] == b"served"
    assert spooled(road) == []


def test_a_closed_stderr_fails_no_call(road: ExecRoad, env: Env) -> None:
    def answer(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(Reply(0, b"{}", b"a remark").encode())

    with listener(road, answer):
        command = ["sh", "-c", f"exec {road.script('test')} 2>&-"]
        done = subprocess.run(command, input=b"{}", stdout=subprocess.PIPE, env=env("ADD"), check=False)
    assert (done.returncode, done.stdout) == (0, b"{}")


def test_a_large_answer_is_printed_as_a_whole_with_its_status(road: ExecRoad, env: Env) -> None:
    reply = Reply(7, b"x" * 300_000, b"y" * 300_000)

    def answer(peer: socket.socket) -> None:
        peer.recv(1 << 16)
        peer.sendall(reply.encode())

    with listener(road, answer):
        done = road.call("test", env("ADD"), CONFIG)
    assert (done.status, done.stdout, done.stderr) == (reply.exit, reply.stdout, reply.stderr)


def test_odd_characters_of_a_path_are_told_as_harmless_ones(road: ExecRoad, road_folder: Path, env: Env) -> None:
    (road_folder / "x").mkdir()
    odd = ExecRoad(road_folder / "x", native=road.native)
    odd.socket = odd.socket.with_name('a"b\\\u00fc\t.sock')
    done = odd.call("test", env("STATUS"), CONFIG)
    assert "x/a'b???.sock: No such file or directory" in done.document["msg"]
