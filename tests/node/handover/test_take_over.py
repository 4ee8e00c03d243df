"""Daemons that nobody started beside each other, as in two pods of a DaemonSet: one takes the place of the other."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from nodeplug import PluginError
from nodeplug.exec.client import ask_for_place
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.testing import BlockingKubelet, ScratchNode, forked, namespaces
from nodeplug.testing.waiting import until

RESOURCE = "example.com/thing"
SECTION = '[plugins.guest]\nuses = "handover_guest:Guest"\nisolation = "thread"\nconfig = {{ folder = "{}" }}\n'
Start = Callable[..., forked.Forked]
pytestmark = pytest.mark.unprivileged


@pytest.fixture
def node(short_path: Path, tmp_path: Path) -> ScratchNode:
    """Its configuration and its commands; the daemons are the test's."""
    return ScratchNode(short_path, SECTION.format(tmp_path), env={"PYTHONPATH": str(Path(__file__).parent)}, fork=True)


@pytest.fixture
def start(node: ScratchNode) -> Iterator[Start]:
    """Start one more daemon."""
    started: list[forked.Forked] = []

    def run(*options: str) -> forked.Forked:
        environment, log = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}, node.log_path
        words = node.command("serve", *options)[3:]  # behind `python -m nodeplug`
        started.append(forked.start("nodeplug", words, environment, stdout=log, stderr=log))
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.wait()


def served_by(node: ScratchNode, daemon: forked.Forked) -> None:
    def serves() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(str(node.paths.exec_socket)) != 0:
                return False
        return int(node.status()["pid"]) == daemon.pid

    until(serves)


def stands_by(daemon: forked.Forked) -> bool:
    """Whether it is the waiting program, whose last step before the wait is to ignore the ends of children."""
    status = Path(f"/proc/{daemon.pid}/status").read_text()
    ignored = int(status.split("\nSigIgn:\t")[1].split()[0], 16)
    return b"standby.py" in Path(f"/proc/{daemon.pid}/cmdline").read_bytes() and bool(ignored >> signal.SIGCHLD - 1 & 1)


@contextmanager
def watched(kubelet: BlockingKubelet) -> Iterator[set[int]]:
    """Collect how many devices kubelet may allocate, all the time."""
    over, counts = threading.Event(), set[int]()

    def look() -> None:
        while not over.wait(0.001):
            counts.add(kubelet.allocatable(RESOURCE))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield counts
    finally:
        over.set()
        looking.join()


def test_a_daemon_takes_the_place_of_another_and_kubelet_sees_no_gap(node: ScratchNode, start: Start) -> None:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet", keyed_by="resource") as kubelet:
        first = start("--take-over")
        kubelet.until_allocatable(RESOURCE, 2)
        with watched(kubelet) as counts:
            second = start("--take-over")
            served_by(node, second)
            until(lambda: stands_by(first))
        assert counts == {2}
        assert first.poll() is None


def test_what_stands_by_ends_when_it_is_told_to(node: ScratchNode, start: Start) -> None:
    first = start("--take-over")
    served_by(node, first)
    second = start("--take-over")
    until(lambda: stands_by(first))
    first.send_signal(signal.SIGTERM)
    assert first.wait() == 0
    served_by(node, second)


def test_what_stands_by_serves_again_when_the_other_daemon_is_gone(node: ScratchNode, start: Start) -> None:
    first = start("--take-over")
    served_by(node, first)
    second = start("--take-over")
    until(lambda: stands_by(first))
    second.kill()
    second.wait()
    served_by(node, first)
    assert node.run("status").returncode == 0


@pytest.mark.whole
def test_what_stands_by_keeps_no_file_of_the_daemon_open(node: ScratchNode, start: Start) -> None:
    first = start("--take-over")
    served_by(node, first)
    start("--take-over")
    until(lambda: stands_by(first))
    until(lambda: len([*Path(f"/proc/{first.pid}/fd").iterdir()]) == 4)  # stdin, stdout, stderr, and the other process


def test_a_daemon_that_cannot_load_what_runs_says_who_keeps_the_node_and_ends(
    node: ScratchNode, start: Start, tmp_path: Path
) -> None:
    first = start("--take-over")
    served_by(node, first)
    (tmp_path / "broken").touch()
    assert start("--take-over").wait() == 1
    assert "the daemon that serves keeps its place: the code that is installed now cannot load what runs" in node.log
    served_by(node, first)


def test_a_daemon_of_systemd_gives_its_place_to_none_that_it_did_not_start(node: ScratchNode, start: Start) -> None:
    served_by(node, first := start())
    with pytest.raises(PluginError, match=r"keeps its place: .*started without --take-over"):
        ask_for_place(node.paths.exec_socket, patience=0.0)
    served_by(node, first)


@pytest.mark.whole
def test_a_daemon_that_dies_while_it_asks_leaves_the_node_to_the_other(
    node: ScratchNode, start: Start, tmp_path: Path
) -> None:
    served_by(node, first := start("--take-over"))
    (tmp_path / "hold load").touch()
    second = start("--take-over")
    until((tmp_path / "in load").exists)
    os.kill(second.pid, signal.SIGKILL)
    (tmp_path / "hold load").unlink()
    until(lambda: "does not take over" in node.log)
    served_by(node, first)


@pytest.mark.whole
@pytest.mark.node
@pytest.mark.programs("unshare")
def test_a_probe_tells_whether_the_daemon_is_in_its_own_container(node: ScratchNode, start: Start) -> None:
    first = start("--take-over")
    served_by(node, first)
    assert node.run("status", "--here").returncode == 0
    elsewhere = [*namespaces.command(network=False), *node.command("status", "--here")]
    assert subprocess.run(elsewhere, check=False).returncode == 3


def allocate(path: Path) -> str:
    """Ask as kubelet does, which waits for ever; return which process has answered."""
    with grpc.insecure_channel(f"unix:{path}") as channel:
        one = pb.ContainerAllocateRequest(devices_ids=["d0"])
        answer = pb_grpc.DevicePluginStub(channel).Allocate(pb.AllocateRequest(container_requests=[one]), timeout=60)
    return str(answer.container_responses[0].envs["PID"])


def test_what_kubelet_asks_the_daemon_before_too_late_is_answered_by_the_next_one(
    node: ScratchNode, start: Start, tmp_path: Path
) -> None:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet", keyed_by="resource") as kubelet:
        first = start("--take-over")
        kubelet.until_allocatable(RESOURCE, 2)
        (before,) = [Path(one["socket"]) for one in node.status()["resources"]]
        assert allocate(before) == str(first.pid)
        (tmp_path / "hold start").touch()
        second = start("--take-over")
        until((tmp_path / "in start").exists)
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(allocate, before)
            with pytest.raises(TimeoutError):
                asked.result(timeout=0.5)  # nobody can answer yet
            (tmp_path / "hold start").unlink()
            assert asked.result() == str(second.pid)
        until(lambda: stands_by(first))
