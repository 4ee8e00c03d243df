"""A whole daemon whose plugin runs in a process: kubelet and pods notice nothing of its end."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.started import until_all_run

from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.waiting import until

RESOURCE = "example.com/thing"
SECTION = '[plugins.guest]\nuses = "worker_guest:Guest"\nisolation = "process"\n'
pytestmark = pytest.mark.unprivileged


@pytest.fixture(params=[True])
def node(short_path: Path, request: pytest.FixtureRequest) -> Iterator[ScratchNode]:
    """A node whose daemon, and what it starts, is forked, or executed if a test says so."""
    env = {"PYTHONPATH": str(Path(__file__).parent)}
    one = ScratchNode(short_path, SECTION, supervisor='listen = ""\n', env=env, fork=request.param)
    try:
        yield one
    finally:
        one.kill()


def guest(node: ScratchNode) -> dict[str, object]:
    (row,) = node.status()["plugins"]
    assert isinstance(row, dict)
    return row


def pid(node: ScratchNode) -> int:
    process = guest(node)["process"]
    return int(process["pid"]) if isinstance(process, dict) else 0


def test_kubelet_keeps_its_stream_and_its_devices_while_a_process_is_killed(node: ScratchNode) -> None:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
        node.start()
        kubelet.until_allocatable(RESOURCE, 2)
        first, registrations = pid(node), len(kubelet.registrations)
        os.kill(first, signal.SIGKILL)
        until(lambda: pid(node) not in {0, first})
        assert kubelet.allocatable(RESOURCE) == 2
        assert len(kubelet.registrations) == registrations
        grant = kubelet.admit("pod", {RESOURCE: 2})[RESOURCE]
        assert grant.envs["PID"] == str(pid(node))
        row = guest(node)
        assert (row["restarts"], row["restarted"]) == (1, "it was killed by SIGKILL")


def test_a_plugin_is_reloaded_by_name_in_another_process(node: ScratchNode) -> None:
    node.start()
    first = pid(node)
    done = node.run("reload", "guest", "--json")
    assert done.returncode == 0, done.stderr
    row = json.loads(done.stdout)
    assert row["process"]["pid"] == pid(node) != first
    assert row["restarts"] == 0
    until(lambda: not Path(f"/proc/{first}").exists())


def test_reload_of_a_plugin_that_nobody_enabled_says_which_there_are(node: ScratchNode) -> None:
    node.start()
    done = node.run("reload", "gest")
    assert done.returncode == 1
    assert "no plugin 'gest' is enabled; there is a [plugins.…] section for: guest" in done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("node", [False], indirect=True)
def test_no_process_outlives_a_daemon_that_is_killed(node: ScratchNode) -> None:
    node.start()
    first = pid(node)
    node.kill()
    until(lambda: not Path(f"/proc/{first}").exists())


def test_a_stopped_process_with_the_daemons_own_rights_ends_with_a_daemon_that_is_killed(node: ScratchNode) -> None:
    node.start()
    first = pid(node)
    assert Path(f"/proc/{first}").stat().st_uid == os.geteuid()
    os.kill(first, signal.SIGSTOP)  # it cannot see that its socket has ended
    node.kill()
    until(lambda: not Path(f"/proc/{first}").exists())


@pytest.mark.whole
@pytest.mark.parametrize("node", [False], indirect=True)
def test_a_process_has_no_descriptor_of_the_daemon_and_neither_its_event_loop_nor_grpc(node: ScratchNode) -> None:
    node.start()
    until_all_run(node)
    found = json.loads(node.run("inspect", "guest").stdout)["guest"]
    assert not [link for link in found["open"] if link.startswith("/") and not link.startswith(("/dev/", "/proc/"))]
    sockets = [link for link in found["open"] if link.startswith("socket:")]
    assert len(sockets) == 4
    assert len({*sockets}) == 3  # its standard output and error are one; the control socket, and this call's
    assert {"asyncio", "grpc", "google", "pyroute2", "typer"}.isdisjoint(found["modules"])


def test_what_a_process_writes_is_in_the_log_as_its_own_and_the_log_goes_on(node: ScratchNode) -> None:
    node.configure(f'{SECTION}[plugins.guest.config]\nat = "health"\nhow = "forges"\n')
    node.start()
    before = len(node.log)
    until(lambda: "the node is lost" in node.log)
    assert len(node.log) > before > 0
    (line,) = [line for line in node.log.splitlines() if "the node is lost" in line]
    assert " WARNING nodeplug.plugin.guest [guest] it wrote: 2026-01-02T03:04:05.678Z ERROR nodeplug.daemon" in line
    first = pid(node)
    os.kill(first, signal.SIGKILL)
    until(lambda: "was killed by SIGKILL" in node.log)


@pytest.mark.parametrize("node", [True, pytest.param(False, marks=pytest.mark.whole)], indirect=True)
def test_what_a_process_prints_last_is_in_the_log(node: ScratchNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)
    node.configure(f'{SECTION}[plugins.guest.config]\nat = "stop"\nhow = "prints"\n')
    node.start()
    until_all_run(node)
    node.configure(SECTION.replace("isolation", "enabled = false\nisolation"))
    until(lambda: "it wrote: farewell" in node.log)


def test_processes_end_with_the_daemon_and_their_plugins_are_stopped(node: ScratchNode) -> None:
    node.start()
    first = pid(node)
    node.stop()
    until(lambda: not Path(f"/proc/{first}").exists())
    assert "plugin guest is unloaded" in node.log
