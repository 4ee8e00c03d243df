"""The signs of life that the daemon gives to systemd's watchdog, and the unit that asks for them."""

import configparser
import os
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from nodeplug import handover
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until
from nodeplug.worker.cgroups import LEAF

SIGN = b"WATCHDOG=1"
UNIT = Path(__file__).parents[2] / "deploy" / "nodeplug.service"
PLUGIN = """
import json
import threading
import time
from nodeplug import CniClaim, hookimpl

class Hung:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [CniClaim("hung")]

    @hookimpl
    def start(self):
        threading.Event().wait()

    @hookimpl
    def cni_add(self, request):
        raise NotImplementedError

    @hookimpl
    def cni_del(self, request):
        raise NotImplementedError

class Replacing(Hung):
    def __init__(self, config, host):
        self.host = host

    @hookimpl
    def start(self):
        threading.Thread(target=self.replace, daemon=True).start()

    def replace(self):
        while not (self.host.run_dir / "now").exists():
            time.sleep(0.01)
        json.dumps = None
"""


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as made:
        made.bind(str(tmp_path / "notify"))
        made.settimeout(30)
        yield made


@pytest.fixture
def env(tmp_path: Path, systemd: socket.socket) -> dict[str, str]:
    (tmp_path / "hung.py").write_text(PLUGIN)
    return {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "400000", "PYTHONPATH": str(tmp_path)}


@pytest.fixture
def node(short_path: Path, env: dict[str, str]) -> Iterator[ScratchNode]:
    made = ScratchNode(short_path, '[plugins.hung]\nuses = "hung:Hung"\n', env=env)
    made.start()
    yield made
    made.kill()


def until_sign(systemd: socket.socket) -> None:
    while SIGN not in systemd.recv(4096).splitlines():
        pass


def drain(systemd: socket.socket) -> None:
    systemd.setblocking(False)
    try:
        while True:
            systemd.recv(4096)
    except BlockingIOError:
        systemd.settimeout(30)


def health(port: int) -> tuple[int, str]:
    """Return the status and the text of the daemon's answer."""
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    with closing(connection):
        connection.request("GET", "/healthz")
        response = connection.getresponse()
        return response.status, response.read().decode()


@pytest.mark.whole
def test_signs_of_life_come_while_a_plugin_hangs(node: ScratchNode, systemd: socket.socket) -> None:
    for _ in range(5):
        until_sign(systemd)


@pytest.mark.whole
def test_a_frozen_daemon_gives_no_sign_of_life_until_it_goes_on(node: ScratchNode, systemd: socket.socket) -> None:
    until_sign(systemd)
    os.kill(node.pid, signal.SIGSTOP)
    while "\nState:\tT" not in Path(f"/proc/{node.pid}/status").read_text():
        pass
    drain(systemd)
    systemd.settimeout(1.5)  # more than three times what the watchdog grants
    with pytest.raises(TimeoutError):
        systemd.recv(4096)
    os.kill(node.pid, signal.SIGCONT)
    systemd.settimeout(30)
    until_sign(systemd)


@pytest.mark.whole
def test_a_daemon_that_answers_no_caller_says_so_and_gives_no_sign_of_life(
    short_path: Path, env: dict[str, str], systemd: socket.socket, free_port: int
) -> None:
    plugins = '[plugins.hung]\nuses = "hung:Replacing"\nisolation = "thread"\n'
    node = ScratchNode(short_path, plugins, supervisor=f'listen = "127.0.0.1:{free_port}"', env=env)
    node.start()
    try:
        assert health(free_port) == (200, "ok\n")
        (node.paths.run / "plugins" / "hung" / "now").touch()
        until(lambda: health(free_port)[0] == 503)  # ten seconds without an answer
        assert "was answered" in health(free_port)[1]
        drain(systemd)
        systemd.settimeout(1.5)
        with pytest.raises(TimeoutError):
            systemd.recv(4096)
    finally:
        node.kill()


def test_the_unit_replaces_a_frozen_daemon_and_never_gives_up() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # keys of units have capitals
    unit.read(UNIT)
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    assert (unit["Service"]["Type"], unit["Service"]["Restart"]) == ("notify", "always")
    assert int(unit["Service"]["WatchdogSec"]) > 0


def test_no_limit_of_the_unit_ends_what_plugins_have_started_for_containers() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # keys of units have capitals
    unit.read(UNIT)
    service = unit["Service"]
    assert service["KillMode"] == "process"
    assert {"MemoryMax", "MemoryHigh", "RuntimeMaxSec"}.isdisjoint(service)
    assert service["Delegate"].split() == ["memory", "pids"]
    assert service["DelegateSubgroup"] == LEAF


def test_systemd_waits_for_a_reload_as_long_as_a_replacement_may_take() -> None:
    unit = configparser.RawConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]  # keys of units have capitals
    unit.read(UNIT)
    calls = handover.TRIES * (handover.QUIET + handover.PAUSE)
    longest = handover.READY + handover.REGISTERED + calls + handover.SERVING
    assert int(unit["Service"].get("TimeoutStartSec", "90")) >= longest
