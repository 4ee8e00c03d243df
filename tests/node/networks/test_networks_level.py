"""What somebody removes from further networks of running pods: noticed, told and restored, also by a later daemon."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest
from tests.node.networks.conftest import ANNOTATIONS, bridge

from nodeplug.testing import CONTAINERD, CniError, CniRuntime, Sandbox, ScratchNode
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.programs("ip")]
KEY = "k8s.v1.cni.cncf.io/networks"
TOML = """
[plugins.bridge.config]
data_dir = "{root}/addresses"
{keys}
[plugins.tuning]
[plugins.networks.config]
conf_dir = "{root}/etc/cni/net.d"
[networks]
kubeconfig = "{root}/kubeconfig"
patience = "1s"
objects = false
"""


class Place:
    """A daemon in a host namespace of its own, whose networks are known from the disk, and one pod."""

    def __init__(self, folder: Path, host: Sandbox, pod: Sandbox, keys: str = "") -> None:
        self.host, self.pod, self.root = host, pod, folder / "n"
        (self.root / "etc" / "cni" / "net.d").mkdir(parents=True)
        pods = json.dumps(bridge("pods", "10.80.0.0/24", isDefaultGateway=True))
        (self.root / "etc" / "cni" / "net.d" / "20-pods.conflist").write_text(pods)
        self.node = ScratchNode(
            self.root,
            TOML.format(root=self.root, keys=keys),
            supervisor='listen = "127.0.0.1:9091"\nnode_name = "node-1"\ninstall = true\nnative_entrypoints = false\n',
            fork=True,
        )
        ranges = [[{"subnet": "10.81.0.0/24"}], [{"subnet": "10.91.0.0/24"}]]
        ipam = {"type": "host-local", "ranges": ranges}
        blue = bridge("blue", "", ipMasq=True, cniVersion="1.1.0", ipam=ipam)
        known = {"default/blue": {"config": json.dumps(blue), "annotations": {}}}
        state = self.node.paths.state / "networks"
        state.mkdir(parents=True)
        (state / "definitions.json").write_text(json.dumps({"version": 1, "definitions": known}))
        plugin = {"type": "nodeplug-networks", "clusterNetwork": "pods", "capabilities": {ANNOTATIONS: True}}
        conflist = {"cniVersion": "1.1.0", "name": "all", "plugins": [plugin]}
        self.runtime = CniRuntime(conflist, [self.node.paths.cni_bin], style=CONTAINERD, cache_dir=folder / "cache")

    def attach(self, networks: Any = "blue", container: str = "c1") -> None:
        wanted = networks if isinstance(networks, str) else json.dumps(networks)
        arguments = {ANNOTATIONS: {KEY: wanted}}
        with self.host.netns.entered():
            self.runtime.attach(container, self.pod.path, capability_args=arguments)

    def detach(self) -> None:
        with self.host.netns.entered():
            self.runtime.detach("c1")

    def status(self) -> str:
        """Ask for STATUS; return what it says with code 51, or else with which; or nothing."""
        try:
            with self.host.netns.entered():
                self.runtime.status()
        except CniError as error:
            return error.msg if error.code == 51 else f"code {error.code}: {error.msg}"
        return ""

    def start(self) -> None:
        with self.host.netns.entered():
            self.node.start()

    def kill(self) -> None:
        self.node.kill()
        self.start()
        until(lambda: self.readyz()[0] == 200)

    def readyz(self) -> tuple[int, str]:
        def ask() -> tuple[int, str]:
            with closing(HTTPConnection("127.0.0.1", 9091, timeout=30)) as connection:
                connection.request("GET", "/readyz")
                answer = connection.getresponse()
                return answer.status, answer.read().decode()

        return run_in(self.host.netns, ask)

    def run(self, command: str, where: Sandbox | None = None) -> str:
        def work() -> str:
            return subprocess.run(command.split(), check=True, capture_output=True, text=True).stdout

        return run_in((where or self.host).netns, work)


@pytest.fixture
def stack(short_path: Path) -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


def place(stack: ExitStack, folder: Path, keys: str = "") -> Place:
    host, pod = (stack.enter_context(Sandbox(folder / name)) for name in ("host", "pod"))
    made = Place(folder, host, pod, keys)
    made.run("ip link set lo up")
    made.run("ip link set lo up", pod)
    stack.callback(lambda: print(made.node.log))  # noqa: T201 - shown when the test fails
    made.start()
    stack.callback(made.node.kill)
    until(lambda: made.node.paths.cni_bin.joinpath("nodeplug-networks").exists())
    return made


@pytest.mark.whole
@pytest.mark.programs("nft")
def test_a_later_daemon_restores_what_somebody_removes_of_a_further_network(stack: ExitStack, short_path: Path) -> None:
    one = place(stack, short_path)
    one.attach()
    one.kill()
    one.run("ip address flush dev blue")
    until(lambda: "10.81.0.1" in one.run("ip -4 address show dev blue"))
    one.run("nft flush set inet nodeplug_masquerade net_10.81.0.0/24")
    until(lambda: "10.81.0.2" in one.run("nft list table inet nodeplug_masquerade"))
    one.run("ip link delete blue")
    until(lambda: "master blue" in one.run("ip link show type veth"))
    until(lambda: one.readyz()[0] == 200)
    with one.host.netns.entered():
        one.runtime.check("c1")


@pytest.mark.whole
def test_a_later_daemon_tells_what_a_further_interface_of_a_pod_lost(stack: ExitStack, short_path: Path) -> None:
    one = place(stack, short_path)
    one.attach()
    one.kill()
    assert one.status() == ""
    one.run("ip address flush dev net1", one.pod)
    until(lambda: "interface net1 of container c1: interface net1 lost its address" in one.readyz()[1])
    assert "interface net1 lost its address" in one.status()
    one.detach()
    until(lambda: one.readyz()[0] == 200)
    assert one.status() == ""
    assert one.node.status()["attachments"] == []


@pytest.mark.whole
def test_status_restores_what_a_further_network_lost_where_that_waits_for_it(
    stack: ExitStack, short_path: Path
) -> None:
    one = place(stack, short_path, "repair = false")
    one.attach()
    one.kill()
    one.run("ip address flush dev blue")
    until(lambda: "the gateway of network blue" in one.readyz()[1])
    assert one.status() == ""
    assert "10.81.0.1" in one.run("ip -4 address show dev blue")
    until(lambda: one.readyz()[0] == 200)


def test_a_later_daemon_gives_a_pod_its_further_interface_again_by_choice(stack: ExitStack, short_path: Path) -> None:
    one = place(stack, short_path, "repair_containers = true")
    one.attach()
    before = one.run("ip -o address show dev net1", one.pod)
    one.kill()
    one.run("ip link delete net1", one.pod)
    until(lambda: "net1" in one.run("ip -o link", one.pod))
    until(lambda: _addresses(one) == before.split()[3])
    with one.host.netns.entered():
        one.runtime.check("c1")


def _addresses(one: Place) -> str:
    found = one.run("ip -o -4 address show dev net1", one.pod).split()
    return found[3] if found else ""


@pytest.mark.whole
def test_a_default_route_that_was_led_elsewhere_is_no_loss(stack: ExitStack, short_path: Path) -> None:
    one = place(stack, short_path)
    one.attach([{"name": "blue", "default-route": ["10.81.0.1"]}])
    assert "default via 10.81.0.1 dev net1" in one.run("ip route", one.pod)
    for _ in range(2):
        one.run("ip address add 192.0.2.1/32 dev eth0", one.pod)  # the kernel tells of it, so eth0 is compared, too
        one.run("ip address delete 10.91.0.2/24 dev net1", one.pod)
        until(lambda: "interface net1 lost its address" in one.readyz()[1])
        assert "interface eth0" not in one.readyz()[1]
        one.run("ip address delete 192.0.2.1/32 dev eth0", one.pod)
        one.run("ip address add 10.91.0.2/24 dev net1", one.pod)
        one.kill()


def test_what_may_be_left_over_is_named_with_the_further_networks_of_its_pod(
    stack: ExitStack, short_path: Path
) -> None:
    one = place(stack, short_path)
    one.attach()
    (done,) = one.node.paths.attachments.glob("*.json")
    begun = {**json.loads(done.read_text()), "time": 0.0}
    done.with_suffix(".begun").write_text(json.dumps(begun))  # as of a daemon that was killed within the ADD
    done.unlink()
    folders = ["--data-dir", one.root / "addresses", "--cache-dir", one.root / "none", "--run-dir", one.node.paths.run]
    with one.host.netns.entered():
        gone = one.node.run("net gc", "--dry-run", "--json", *map(str, folders))
    rows = {(row["kind"], row["network"], row["ifname"]): row for row in json.loads(gone.stdout)}
    whole = rows["attachment", "all", "eth0"]
    named = "nodeplug-networks with nodeplug-bridge pods eth0, nodeplug-bridge blue net1"
    assert (whole["name"], whole["state"]) == (named, "unknown")
    assert rows["address", "blue", "net1"]["state"] == "held"
