"""DELs that an entrypoint has kept while the daemon was away, and what becomes of them when it is back."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.own_descriptors import room_for_descriptors, with_own_descriptors

from nodeplug import CniAdd, CniClaim, CniDel, CniResult, Netns, PluginError, TryAgain, bind, hookimpl, unmount
from nodeplug.cni.attachments import Key
from nodeplug.exec.frame import Frame
from nodeplug.testing import ExecRoad

Env = Callable[..., dict[str, str]]
CONFIG = {"cniVersion": "1.0.0", "name": "net", "type": "test"}


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


def spooled(road: ExecRoad) -> list[Path]:
    return sorted(road.spool.folder.iterdir()) if road.spool.folder.exists() else []


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


@pytest.mark.programs("nsenter")
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

    async def settle_without_descriptors() -> str:
        with room_for_descriptors(0):
            try:
                await road.spool.settle(Key("test", "net", "c1", "eth0"), road.service.replay)
            except TryAgain as refusal:
                return str(refusal)
        return ""

    def settle() -> str:
        with road:
            return road.wait_for(settle_without_descriptors())

    assert "Too many open files" in with_own_descriptors(settle)


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
