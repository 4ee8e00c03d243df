"""A daemon that is stopped (SIGSTOP) still has callers in its backlog: nobody waits long for it."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.suites import divided

from nodeplug.testing import ExecRoad, forked
from nodeplug.testing.waiting import until

pytestmark = [
    pytest.mark.parametrize("road", divided(["script", "compiled"], {"script"}), indirect=True),
    pytest.mark.xdist_group("impatient-entrypoints"),  # one process compiles each of them once
]

Env = Callable[..., dict[str, str]]
Impatience = Callable[..., None]
CONFIG = {"cniVersion": "1.1.0", "name": "net", "type": "test"}
SERVER = """
import asyncio, sys
from pathlib import Path
from nodeplug.exec.server import ExecServer
from nodeplug.process.turns import TurnLoop
from nodeplug.exec.frame import Reply

async def serve_one(frame, namespaces):
    words = [*frame.argv[:1], frame.env.get("CNI_COMMAND", ""), frame.env.get("CNI_CONTAINERID", "")]
    print("serves", *filter(None, words), flush=True)
    await asyncio.sleep(float(sys.argv[2]))
    return Reply(0, b'{"status": "Success"}')

async def main():
    server = ExecServer(Path(sys.argv[1]), {"cni": serve_one, "flex": serve_one})
    await server.start()
    print("up", flush=True)
    await server.serve()

with asyncio.Runner(loop_factory=TurnLoop) as runner:
    runner.run(main())
"""


class Server:
    """An exec server in a process of its own, each of whose answers takes a while."""

    def __init__(self, road: ExecRoad, folder: Path, seconds: float) -> None:
        program, self._said, self._read = folder / "server.py", folder / "said", 0
        program.write_text(SERVER)
        arguments, nowhere = [str(road.socket), str(seconds)], Path(os.devnull)
        self.process = forked.start(str(program), arguments, os.environ, stdout=self._said, stderr=nowhere)
        self.line()

    def line(self) -> str:
        """Wait for the next line that it says."""
        self._read += 1
        until(lambda: len(self.lines()) >= self._read)
        return self.lines()[self._read - 1]

    def lines(self) -> list[str]:
        return self._said.read_text().split("\n")[:-1] if self._said.exists() else []

    def stop(self) -> None:
        os.kill(self.process.pid, signal.SIGSTOP)
        # The signal is delivered at some time; the state tells when it was (proc(5)).
        until(lambda: Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")

    def go_on(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)


@pytest.fixture
def serve(road: ExecRoad, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    servers: list[Server] = []

    def begin(seconds: float = 0) -> Server:
        servers.append(Server(road, tmp_path, seconds))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.wait()


@pytest.mark.parametrize(("verb", "code"), [("ADD", 11), ("CHECK", 11), ("GC", 11), ("STATUS", 50)])
def test_a_stopped_daemon_keeps_no_call_waiting(
    road: ExecRoad, env: Env, impatient: Impatience, serve: Callable[..., Server], verb: str, code: int
) -> None:
    impatient(patience=1, haste=0.5)
    serve().stop()
    done = road.call("test", env(verb), CONFIG)
    assert (done.status, done.document["code"]) == (1, code)
    assert "it is stopped, or hangs" in done.document["msg"]


def test_status_is_not_as_patient_as_the_others(
    road: ExecRoad, env: Env, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=1000, haste=0.5)
    serve().stop()
    assert road.call("test", env("STATUS"), CONFIG).document["code"] == 50


def test_a_del_that_a_stopped_daemon_does_not_read_is_kept(
    road: ExecRoad, env: Env, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=1)
    serve().stop()
    done = road.call("test", env("DEL"), CONFIG)
    assert (done.status, done.stdout) == (0, b"")
    assert [path.suffix for path in road.spool.folder.iterdir()] == [".frame"]


def test_a_driver_fails_when_the_daemon_is_stopped(
    road: ExecRoad, tmp_path: Path, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=1)
    serve().stop()
    done = subprocess.run([road.flex_script(tmp_path, "driver"), "unmount", "/t"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["status"] == "Failure"


@pytest.mark.parametrize("verb", ["ADD", "DEL"])
def test_a_daemon_that_stops_in_the_middle_of_a_call_keeps_it_no_longer(
    road: ExecRoad, env: Env, impatient: Impatience, serve: Callable[..., Server], verb: str
) -> None:
    impatient(patience=1)
    server = serve(3600)
    with subprocess.Popen(
        [road.script("test")], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env(verb)
    ) as one:
        assert server.line() == f"serves {verb} c1"
        server.stop()
        out, _ = one.communicate(timeout=60)
    assert (one.returncode, b'"code":11' in out) == ((0, False) if verb == "DEL" else (1, True))


def test_a_daemon_that_is_at_work_is_waited_for(
    road: ExecRoad, env: Env, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=4)
    serve(3)
    assert road.call("test", env("ADD"), CONFIG).stdout == b'{"status": "Success"}'


def test_a_driver_waits_for_a_daemon_that_is_at_work(
    road: ExecRoad, tmp_path: Path, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=4)
    serve(3)
    done = subprocess.run([road.flex_script(tmp_path, "driver"), "mount"], capture_output=True, check=False)
    assert json.loads(done.stdout) == {"status": "Success"}


def test_what_callers_gave_up_is_not_done_when_the_daemon_goes_on(
    road: ExecRoad, env: Env, tmp_path: Path, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=3)
    server = serve()
    server.stop()
    driver = road.flex_script(tmp_path, "driver")
    with ThreadPoolExecutor() as callers:
        calls = [callers.submit(road.call, "test", env(verb), CONFIG) for verb in ("ADD", "DEL")]
        subprocess.run([driver, "unmount", "/t"], capture_output=True, check=False)
    assert [call.result().status for call in calls] == [1, 0]
    server.go_on()
    assert road.call("test", env("ADD", CNI_CONTAINERID="c2"), CONFIG).status == 0
    server.process.send_signal(signal.SIGTERM)
    server.process.wait()
    assert server.lines() == ["up", "serves ADD c2"]


def test_a_daemon_that_is_at_work_for_too_long_is_waited_for_no_longer(
    road: ExecRoad, env: Env, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=4, timeout=1)
    serve(3600)
    done = road.call("test", env("ADD"), CONFIG)
    assert (done.status, done.document["code"], "timed out" in done.document["msg"]) == (1, 11, True)


def test_a_driver_waits_no_longer_either(
    road: ExecRoad, tmp_path: Path, impatient: Impatience, serve: Callable[..., Server]
) -> None:
    impatient(patience=4, timeout=1)
    serve(3600)
    done = subprocess.run([road.flex_script(tmp_path, "driver"), "mount"], capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    assert json.loads(done.stdout)["message"] == "nodeplug daemon ended or hung before it answered"
