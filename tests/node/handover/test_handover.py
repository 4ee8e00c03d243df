"""A daemon is replaced by another one while pods come and go: nobody is refused, and kubelet sees no gap."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.ended import wait_until_ended
from tests.node.handover.replaced import SECTION, beside, replace, running, serving

from nodeplug.testing import BlockingKubelet, ScratchNode
from nodeplug.testing.waiting import until

RESOURCE = "example.com/thing"
ENTRYPOINT = Path(__file__).parents[3] / "bin" / "nodeplug-flex"
pytestmark = pytest.mark.unprivileged


@pytest.fixture(params=["thread", pytest.param("process", marks=pytest.mark.whole)])
def node(short_path: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[ScratchNode]:
    with running(short_path, tmp_path, request.param) as one:
        yield one


class Volumes:
    """What kubelet does with the driver: it executes the entrypoint."""

    def __init__(self, node: ScratchNode, folder: Path) -> None:
        driver = folder / "example~noted"
        driver.mkdir(exist_ok=True)
        text = ENTRYPOINT.read_text().replace("/run/nodeplug/exec.sock", str(node.paths.exec_socket))
        self._executable = driver / "noted"
        self._executable.write_text(text)
        self._executable.chmod(0o755)

    def call(self, verb: str, name: str) -> dict[str, object]:
        words = {"attach": [json.dumps({"name": name}), "a-node"], "detach": [name, "a-node"]}[verb]
        done = subprocess.run([sys.executable, self._executable, verb, *words], capture_output=True, check=True)
        document = json.loads(done.stdout)
        assert isinstance(document, dict)
        return document


@pytest.fixture
def volumes(node: ScratchNode, tmp_path: Path) -> Volumes:
    return Volumes(node, tmp_path)


@pytest.mark.whole
def test_one_daemon_follows_another_again_and_again(node: ScratchNode) -> None:
    pids = [replace(node) for _ in range(3)]
    assert len(set(pids)) == 3
    until(lambda: not node.running)


@pytest.mark.parametrize("node", [pytest.param("thread", marks=pytest.mark.whole), "process"], indirect=True)
def test_a_plugin_of_the_next_daemon_starts_after_that_of_the_one_before_has_stopped(
    node: ScratchNode, tmp_path: Path
) -> None:
    (tmp_path / "hold stop").touch()
    with beside(lambda: replace(node)) as replaced:
        until((tmp_path / "in stop").exists)
        time.sleep(1)  # the next one would start now
        (tmp_path / "hold stop").unlink()
        replaced()
    verbs = [line.split()[0] for line in (tmp_path / "owners").read_text().splitlines()]
    assert verbs == ["start", "stop", "start"]


@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_no_call_fails_while_the_daemon_is_replaced(node: ScratchNode, volumes: Volumes, times: int) -> None:
    over = threading.Event()

    def live(pod: int) -> list[dict[str, object]]:
        answers = []
        while not over.is_set():
            answers += [volumes.call("attach", f"p{pod}"), volumes.call("detach", f"p{pod}")]
            time.sleep(0.05)
        return answers

    with ThreadPoolExecutor(4) as pods:
        lives = [pods.submit(live, number) for number in range(3)]
        try:
            for _ in range(times):
                replace(node)
        finally:
            over.set()
        answers = [answer for one in lives for answer in one.result()]
    assert [answer for answer in answers if answer["status"] != "Success"] == []
    assert len(answers) > 4 * times
    assert list((node.paths.journal / "guest").glob("*.json")) == []


@pytest.mark.parametrize("keyed_by", ["resource", pytest.param("socket", marks=pytest.mark.whole)])
def test_kubelet_never_sees_less_while_daemons_follow_each_other(node: ScratchNode, keyed_by: Any) -> None:
    over, least = threading.Event(), []

    def watch(kubelet: BlockingKubelet) -> None:
        while not over.wait(0.001):
            least.append(kubelet.allocatable(RESOURCE))

    with BlockingKubelet(node.root / "var" / "lib" / "kubelet", keyed_by=keyed_by) as kubelet:
        kubelet.until_allocatable(RESOURCE, 2)
        with ThreadPoolExecutor(1) as beside:
            watching = beside.submit(watch, kubelet)
            try:
                replace(node)
                replace(node)
                time.sleep(0.5)
            finally:
                over.set()
            watching.result()
        assert set(least) == {2}
        until(lambda: len(list(node.paths.device_plugins.glob("nodeplug-*.sock"))) == 1)
        kubelet.until(lambda: kubelet.stand_in.streams(RESOURCE) == 3)  # those of all three daemons
        grant = kubelet.admit("pod", {RESOURCE: 2})[RESOURCE]
        assert grant.envs["PID"] in owner(node)


@pytest.mark.whole
def test_kubelet_sees_no_gap_either_where_its_plugin_watcher_finds_the_daemons(
    short_path: Path, tmp_path: Path
) -> None:
    over, least = threading.Event(), []
    supervisor = 'listen = ""\ndevice_registration = "watcher"'
    environment = {"PYTHONPATH": str(Path(__file__).parent)}
    node = ScratchNode(
        short_path, SECTION.format("thread", tmp_path), supervisor=supervisor, env=environment, fork=True
    )
    folder = node.root / "var" / "lib" / "kubelet"
    with node, BlockingKubelet(folder, keyed_by="resource", watch_plugins=True) as kubelet:
        kubelet.until_allocatable(RESOURCE, 2)

        def watch() -> None:
            while not over.wait(0.001):
                least.append(kubelet.allocatable(RESOURCE))

        with beside(watch) as watched:
            try:
                for _ in range(3):
                    replace(node)
                time.sleep(2)  # a daemon that has taken over looks for what is left after 1 s
            finally:
                over.set()
            watched()
        assert set(least) == {2}
        kubelet.stop()
        until(lambda: len(list(node.paths.plugins_registry.glob("nodeplug-*.sock"))) == 1)
        kubelet.start()
        kubelet.until_allocatable(RESOURCE, 2)
        os.kill(serving(node), signal.SIGKILL)


def owner(node: ScratchNode) -> set[str]:
    (row,) = node.status()["plugins"]
    return {str(row["process"]["pid"] if row["process"] else serving(node))}


@pytest.mark.whole
def test_a_successor_that_cannot_load_what_runs_leaves_the_one_before_in_its_place(
    node: ScratchNode, tmp_path: Path
) -> None:
    before = serving(node)
    (tmp_path / "broken").touch()
    done = node.run("replace")
    assert done.returncode == 1
    assert "cannot load what runs" in done.stderr
    assert "the code that is installed now is broken" in done.stderr
    assert serving(node) == before
    (tmp_path / "broken").unlink()
    replace(node)


@pytest.mark.whole
def test_a_successor_that_is_refused_takes_no_device_from_kubelet(node: ScratchNode, tmp_path: Path) -> None:
    over, counts = threading.Event(), set[int]()
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet", keyed_by="resource") as kubelet:
        kubelet.until_allocatable(RESOURCE, 2)

        def watch() -> None:
            while not over.wait(0.001):
                counts.add(kubelet.allocatable(RESOURCE))

        (tmp_path / "broken").touch()
        with beside(watch) as watched:
            try:
                assert node.run("replace").returncode == 1
                time.sleep(1)  # in which kubelet would notice
            finally:
                over.set()
            watched()
    assert counts == {2}


def test_a_successor_that_is_killed_leaves_the_one_before_in_its_place(node: ScratchNode, tmp_path: Path) -> None:
    before = serving(node)
    (tmp_path / "hold load").touch()
    with beside(lambda: node.run("replace")) as asked:
        until(lambda: "is started to take over" in node.log)
        successor = int(node.log.split("process ")[-1].split()[0])
        until((tmp_path / "in load").exists)
        os.kill(successor, signal.SIGKILL)
        done = asked()
    assert done.returncode == 1
    assert "ended before it was loaded" in done.stderr
    assert serving(node) == before


@pytest.mark.whole
def test_a_successor_is_no_child_of_the_daemon_before(node: ScratchNode, tmp_path: Path) -> None:
    (tmp_path / "hold load").touch()
    with beside(lambda: node.run("replace")) as asked:
        until((tmp_path / "in load").exists)
        successor = int(node.log.split("process ")[-1].split()[0])
        status = Path(f"/proc/{successor}/status").read_text()
        (tmp_path / "hold load").unlink()
        assert asked().returncode == 0
    assert f"\nPPid:\t{node.pid}\n" not in status
    assert serving(node) == successor


def test_a_call_that_takes_its_time_ends_where_it_began(node: ScratchNode, volumes: Volumes, tmp_path: Path) -> None:
    (tmp_path / "hold attach").touch()
    with beside(lambda: volumes.call("attach", "slow")) as attached:
        until((tmp_path / "in attach").exists)
        with beside(lambda: node.run("replace")) as asked:
            until(lambda: "is started to take over" in node.log)
            (tmp_path / "hold attach").unlink()
            assert attached()["status"] == "Success"
            assert asked().returncode == 0
    until(lambda: not node.running)


@pytest.mark.whole
def test_kubelet_has_the_devices_again_when_a_successor_that_it_knew_is_killed(
    node: ScratchNode, volumes: Volumes, tmp_path: Path
) -> None:
    before = serving(node)
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet", keyed_by="resource") as kubelet:
        kubelet.until_allocatable(RESOURCE, 2)
        (tmp_path / "hold attach").touch()
        with beside(lambda: volumes.call("attach", "slow")) as attached:
            until((tmp_path / "in attach").exists)
            with beside(lambda: node.run("replace")) as asked:
                kubelet.until(lambda: len(kubelet.registrations) == 2)
                os.kill(int(node.log.split("process ")[-1].split()[0]), signal.SIGKILL)
                assert asked().returncode == 1
            kubelet.until(lambda: len(kubelet.registrations) == 3)
            kubelet.until_allocatable(RESOURCE, 2)
            (tmp_path / "hold attach").unlink()
            assert attached()["status"] == "Success"
    assert serving(node) == before


@pytest.mark.whole
def test_nobody_waits_for_calls_any_more_when_the_successor_is_killed(
    node: ScratchNode, volumes: Volumes, tmp_path: Path
) -> None:
    before = serving(node)
    (tmp_path / "hold attach").touch()
    with beside(lambda: volumes.call("attach", "slow")) as attached:
        until((tmp_path / "in attach").exists)
        try:
            with beside(lambda: node.run("replace")) as asked:
                until(lambda: "is started to take over" in node.log)
                successor = int(node.log.split("process ")[-1].split()[0])
                until(lambda: "takes over when calls have ended" in node.log)
                time.sleep(1)
                os.kill(successor, signal.SIGKILL)
                done = asked()
        finally:
            (tmp_path / "hold attach").unlink()
        assert (done.returncode, f"its successor, process {successor}, " in done.stderr) == (1, True)
        assert attached()["status"] == "Success"
    assert serving(node) == before


@pytest.mark.whole  # calls get half a minute to end
def test_a_call_that_does_not_end_keeps_the_daemon_and_others_are_served(
    node: ScratchNode, volumes: Volumes, tmp_path: Path
) -> None:
    before = serving(node)
    (tmp_path / "hold attach").touch()
    with beside(lambda: volumes.call("attach", "slow")) as attached:
        until((tmp_path / "in attach").exists)
        with beside(lambda: node.run("replace")) as asked:
            assert volumes.call("detach", "other")["status"] == "Success"
            done = asked()
        assert done.returncode == 1
        assert "calls did not end within" in done.stderr
        assert "attach of volume:example/noted" in done.stderr
        assert serving(node) == before
        (tmp_path / "hold attach").unlink()
        assert attached()["status"] == "Success"


@pytest.mark.whole
def test_a_container_that_asks_for_devices_meanwhile_waits_for_the_next_daemon(
    node: ScratchNode, tmp_path: Path
) -> None:
    with BlockingKubelet(node.root / "var" / "lib" / "kubelet") as kubelet:
        kubelet.until_allocatable(RESOURCE, 2)
        (tmp_path / "hold start").touch()
        with beside(lambda: replace(node)) as replaced:
            until((tmp_path / "in start").exists)
            with beside(lambda: kubelet.admit("pod", {RESOURCE: 2})) as admitted:
                time.sleep(0.3)
                (tmp_path / "hold start").unlink()
                replaced()
                assert admitted()[RESOURCE].envs["PID"] in owner(node)


@pytest.mark.parametrize("supervised", [pytest.param(True, marks=pytest.mark.whole), False])
def test_a_successor_whose_predecessor_is_killed_stays_unless_another_daemon_is_started(
    short_path: Path, tmp_path: Path, supervised: bool
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(tmp_path / "notify"))
        environment = {"PYTHONPATH": str(Path(__file__).parent)}
        environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify")} if supervised else {}
        node = ScratchNode(short_path, SECTION.format("thread", tmp_path), env=environment, fork=True)
        node.start()
        (tmp_path / "hold start").touch()
        with beside(lambda: node.run("replace")) as asked:
            until((tmp_path / "in start").exists)
            successor = int(node.log.split("process ")[-1].split()[0])
            node.kill()
            (tmp_path / "hold start").unlink()
            asked()
        if supervised:
            wait_until_ended(successor)
            node.start()  # as systemd does
            assert serving(node) == node.pid
            node.kill()
        else:
            until(lambda: serving(node) == successor)
            os.kill(successor, signal.SIGKILL)
