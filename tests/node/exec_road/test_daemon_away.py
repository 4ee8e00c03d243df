"""What the scripts answer alone: the daemon is away, frozen, killed in the middle, or too old to understand."""

import json
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniAdd, CniClaim, CniDel, CniResult, Netns, PluginError, TryAgain, bind, hookimpl, unmount
from nodeplug.cni.attachments import Key
from nodeplug.exec.frame import Frame
from nodeplug.testing import ExecRoad

Env = Callable[..., dict[str, str]]
Impatience = Callable[..., None]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]


class Plugin:
    def __init__(self) -> None:
        self.order: list[str] = []
        self.namespaces: list[Netns | None] = []
        self.broken = False

    @hookimpl
    def claims(self) -> list[CniClaim]:
        return [CniClaim("test")]

    @hookimpl
    def cni_add(self, request: CniAdd) -> CniResult:
        self.order.append(f"ADD {request.container_id}")
        return CniResult()

    @hookimpl
    def cni_del(self, request: CniDel) -> None:
        if self.broken:
            raise PluginError("the bridge is on fire")
        self.order.append(f"DEL {request.container_id}")
        self.namespaces.append(request.netns)


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


def test_status_without_daemon_is_50_at_once(road: ExecRoad, env: Env, impatient: Impatience) -> None:
    impatient(patience=1000)
    done = road.call("test", env("STATUS"), CONFIG)
    assert (done.status, done.document["code"]) == (1, 50)


def test_del_without_daemon_is_kept_and_succeeds(road: ExecRoad, env: Env) -> None:
    done = road.call("test", env("DEL", TRACEPARENT="00-1-2-01", SECRET="x"), CONFIG)
    assert (done.status, done.stdout) == (0, b"")
    (path,) = spooled(road)
    frame = Frame.decode(path.read_bytes())
    assert (frame.style, frame.name, json.loads(frame.stdin)) == ("cni", "test", CONFIG)
    assert frame.env == env("DEL", TRACEPARENT="00-1-2-01")
    assert path.stat().st_mode & 0o777 == 0o600


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


def test_a_frozen_daemon_hangs_nobody(road: ExecRoad, env: Env, impatient: Impatience) -> None:
    impatient(patience=1, timeout=1)
    thaw = threading.Event()
    with listener(road, lambda _: thaw.wait(30)):
        done = road.call("test", env("ADD"), CONFIG)
        thaw.set()
    assert (done.status, done.document["code"]) == (1, 11)
    assert "it is stopped, or hangs" in done.document["msg"]


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from nodeplug.exec.server import ExecServer
from nodeplug.process.turns import TurnLoop

async def die(frame, namespaces):
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    server = ExecServer(Path(sys.argv[1]), {"cni": die})
    await server.start()
    print("up", flush=True)
    await server.serve()

with asyncio.Runner(loop_factory=TurnLoop) as runner:
    runner.run(main())
"""


def test_a_daemon_killed_in_the_middle_of_a_del_loses_nothing(road: ExecRoad, env: Env) -> None:
    process = subprocess.Popen([sys.executable, "-c", DYING, str(road.socket)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == b"up\n"
        assert road.call("test", env("DEL"), CONFIG).status == 0
    assert process.wait() == -signal.SIGKILL
    plugin = Plugin()
    road.load("tested", plugin)
    road.start()  # over the socket that the killed one left
    road.wait_for(road.spool.replay(road.service.replay))
    assert plugin.order == ["DEL c1"]
    assert spooled(road) == []


def test_kept_dels_are_replayed_oldest_first(road: ExecRoad, env: Env) -> None:
    for container in ("one", "two", "three"):
        road.call("test", env("DEL", CNI_CONTAINERID=container), CONFIG)
    plugin = Plugin()
    road.load("tested", plugin)
    road.start()
    road.wait_for(road.spool.replay(road.service.replay))
    assert plugin.order == ["DEL one", "DEL two", "DEL three"]


def test_an_add_goes_after_the_kept_del_of_its_attachment(road: ExecRoad, env: Env) -> None:
    road.call("test", env("DEL"), CONFIG)
    road.call("test", env("DEL", CNI_CONTAINERID="other"), CONFIG)
    plugin = Plugin()
    road.load("tested", plugin)
    road.start()
    assert road.call("test", env("ADD"), CONFIG).status == 0
    assert plugin.order == ["DEL c1", "ADD c1"]
    road.wait_for(road.spool.replay(road.service.replay))
    assert plugin.order == ["DEL c1", "ADD c1", "DEL other"]


def test_an_add_does_not_pass_a_kept_del_that_fails(road: ExecRoad, env: Env) -> None:
    road.call("test", env("DEL"), CONFIG)
    plugin = Plugin()
    plugin.broken = True
    road.load("tested", plugin)
    road.start()
    done = road.call("test", env("ADD"), CONFIG)
    assert (done.status, done.document["code"]) == (1, 11)
    assert "on fire" in done.document["msg"]
    assert (road.spool.count(), len(spooled(road))) == (1, 1)


@pytest.mark.parametrize("path", ["process", "/proc/self/ns/net", "own"])
def test_a_kept_del_does_not_enter_a_namespace_that_is_another_by_now(
    road: ExecRoad, env: Env, netns: Path, tmp_path: Path, path: str
) -> None:
    with subprocess.Popen(["/usr/bin/nsenter", f"--net={netns}", "sleep", "60"]) as process:
        if path == "process":
            path = f"/proc/{process.pid}/ns/net"
        elif path == "own":
            path = str(tmp_path / "own")
            Path(path).symlink_to("/proc/self/ns/net")
        road.call("test", env("DEL", CNI_NETNS=path), CONFIG)
        plugin = Plugin()
        road.load("tested", plugin)
        road.start()
        road.wait_for(road.spool.replay(road.service.replay))
        process.kill()
    assert (plugin.order, plugin.namespaces) == (["DEL c1"], [None])
    assert spooled(road) == []


def test_an_add_does_not_pass_kept_dels_that_cannot_be_read(road: ExecRoad, env: Env) -> None:
    road.call("test", env("DEL"), CONFIG)
    road.start()

    async def settle_without_descriptors() -> str:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, limits[1]))
        try:
            await road.spool.settle(Key("test", "net", "c1", "eth0"), road.service.replay)
        except TryAgain as refusal:
            return str(refusal)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        return ""

    assert "Too many open files" in road.wait_for(settle_without_descriptors())


def test_a_kept_del_that_cannot_be_removed_is_replayed_once(road: ExecRoad, env: Env) -> None:
    road.call("test", env("DEL"), CONFIG)
    plugin = Plugin()
    road.load("tested", plugin)
    road.start()
    bind(str(road.spool.folder), str(road.spool.folder), read_only=True)
    try:
        assert road.call("test", env("ADD"), CONFIG).status == 0
        road.wait_for(road.spool.replay(road.service.replay))
        assert len(spooled(road)) == 1
    finally:
        unmount(str(road.spool.folder))
    road.wait_for(road.spool.replay(road.service.replay))
    assert plugin.order == ["DEL c1", "ADD c1"]
    assert spooled(road) == []


def test_a_replay_that_fails_stays_and_waits(road: ExecRoad, env: Env) -> None:
    road.call("test", env("DEL"), CONFIG)
    plugin = Plugin()
    plugin.broken = True
    road.load("tested", plugin)
    road.start()
    road.wait_for(road.spool.replay(road.service.replay))
    plugin.broken = False
    road.wait_for(road.spool.replay(road.service.replay))  # not due yet
    assert (plugin.order, road.spool.count()) == ([], 1)


def test_a_del_kept_while_the_daemon_is_up_is_found(road: ExecRoad, env: Env) -> None:
    plugin = Plugin()
    road.load("tested", plugin)
    road.call("test", env("DEL"), CONFIG)
    road.start(replay=True)
    for _ in range(200):
        if not spooled(road):
            break
        threading.Event().wait(0.02)
    assert plugin.order == ["DEL c1"]


@pytest.mark.parametrize("data", [b"", b"junk", Frame("cni", "/x/test", env={"CNI_COMMAND": "ADD"}).encode()])
def test_a_damaged_file_of_the_spool_is_set_aside(road: ExecRoad, data: bytes) -> None:
    road.start()
    (road.spool.folder / "1.frame").write_bytes(data)
    road.wait_for(road.spool.look())
    assert road.spool.count() == 0
    assert [path.name for path in spooled(road)] == ["1.damaged"]
