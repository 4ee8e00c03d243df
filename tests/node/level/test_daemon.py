"""What is missing on a node shows in everything that the daemon says of itself, and ends there when it is restored."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from http.client import HTTPConnection
from pathlib import Path

import pytest
from tests.programs import need

from nodeplug.testing import CONTAINERD, CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until

Make = Callable[[str], Sandbox]
Start = Callable[[str], ScratchNode]


@pytest.fixture
def sandbox(short_path: Path) -> Iterator[Make]:
    with ExitStack() as stack:
        yield lambda name: stack.enter_context(Sandbox(short_path / name))


@pytest.fixture
def host(sandbox: Make) -> Sandbox:
    found = sandbox("host")
    run(found, "ip link set lo up")
    return found


@pytest.fixture
def start(short_path: Path, host: Sandbox) -> Iterator[Start]:
    made: list[ScratchNode] = []

    def begin(toml: str) -> ScratchNode:
        (short_path / "n").mkdir()
        one = ScratchNode(short_path / "n", toml, supervisor='listen = "127.0.0.1:9091"', fork=True)
        made.append(one)
        run_in(host.netns, one.start)
        assert one.run("install").returncode == 0
        return one

    yield begin
    for one in made:
        with suppress(Exception):
            os.kill(int(one.status()["pid"]), signal.SIGKILL)
        one.kill()


def run(host: Sandbox, command: str) -> str:
    words = command.split()
    need(words[0])
    return run_in(host.netns, lambda: subprocess.run(words, check=True, capture_output=True, text=True).stdout)


def get(host: Sandbox, path: str) -> tuple[int, str]:
    def ask() -> tuple[int, str]:
        with closing(HTTPConnection("127.0.0.1", 9091, timeout=30)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    return run_in(host.netns, ask)


def attach(node: ScratchNode, host: Sandbox, pod: Sandbox, addresses: Path) -> CniRuntime:
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]], "dataDir": str(addresses)}
    plugin = {"type": "nodeplug-bridge", "bridge": "br0", "isGateway": True, "ipMasq": True, "ipam": ipam}
    conflist = {"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]}
    runtime = CniRuntime(conflist, [node.paths.cni_bin], style=CONTAINERD)
    with host.netns.entered():
        runtime.attach("c1", pod.path)
    return runtime


def metric(page: str, start: str) -> str:
    return next((line for line in page.splitlines() if line.startswith(start)), "")


def test_a_node_that_lost_its_bridge_is_not_ready_until_its_runtime_asks(
    start: Start, host: Sandbox, sandbox: Make, short_path: Path
) -> None:
    node = start("[plugins.bridge]\n[plugins.bridge.config]\nrepair = false\n")
    runtime = attach(node, host, sandbox("pod"), short_path / "addresses")
    assert get(host, "/readyz")[0] == 200
    run(host, "ip link delete br0")
    until(lambda: get(host, "/readyz")[0] == 503)
    assert "bridge br0 of network net is gone" in get(host, "/readyz")[1]
    assert "bridge br0 of network net is gone" in json.dumps(node.status())
    until(lambda: metric(get(host, "/metrics")[1], "nodeplug_net_missing").endswith(" 1.0"))
    with host.netns.entered():
        runtime.status()
    until(lambda: get(host, "/readyz")[0] == 200)
    assert "br0" in run(host, "ip link show type bridge")


def test_a_node_restores_what_was_removed_and_counts_it(
    start: Start, host: Sandbox, sandbox: Make, short_path: Path
) -> None:
    node = start("[plugins.bridge]\n")
    runtime = attach(node, host, sandbox("pod"), short_path / "addresses")
    run(host, "ip link delete br0")
    run(host, "nft flush ruleset")
    until(lambda: metric(get(host, "/metrics")[1], "nodeplug_net_restored"))
    until(lambda: get(host, "/readyz")[0] == 200)
    with host.netns.entered():
        runtime.check("c1")
    assert "nodeplug_masquerade" in run(host, "nft list ruleset")


def test_a_bridge_whose_name_something_else_took_is_told_to_the_runtime(
    start: Start, host: Sandbox, sandbox: Make, short_path: Path
) -> None:
    node = start("[plugins.bridge]\n[plugins.bridge.config]\nrepair = false\n")
    runtime = attach(node, host, sandbox("pod"), short_path / "addresses")
    run(host, "ip link delete br0")
    run(host, "ip link add br0 type veth peer name other")
    with host.netns.entered(), pytest.raises(CniError, match="interface br0 is not a bridge") as raised:
        runtime.status()
    assert raised.value.code == 51


def test_a_killed_daemon_knows_its_containers_again_and_tells_what_they_lost(
    start: Start, host: Sandbox, sandbox: Make, short_path: Path
) -> None:
    node, pod = start("[plugins.bridge]\n"), sandbox("pod")
    runtime = attach(node, host, pod, short_path / "addresses")
    os.kill(int(node.status()["pid"]), signal.SIGKILL)
    node.kill()
    run_in(host.netns, node.start)
    run(host, "nft flush set inet nodeplug_masquerade net_10.88.0.0/24")
    until(lambda: metric(get(host, "/metrics")[1], "nodeplug_net_restored").endswith(" 1.0"))
    with host.netns.entered():
        runtime.check("c1")
    run(pod, "ip address flush dev eth0")
    until(lambda: "container c1: interface eth0 lost its address" in get(host, "/readyz")[1])
    until(lambda: metric(get(host, "/metrics")[1], "nodeplug_net_missing").endswith(" 1.0"))
    with host.netns.entered(), pytest.raises(CniError, match="container c1: interface eth0 lost its address") as raised:
        runtime.status()
    assert raised.value.code == 51
    with host.netns.entered():
        runtime.detach("c1")
        runtime.status()
    until(lambda: get(host, "/readyz")[0] == 200)
