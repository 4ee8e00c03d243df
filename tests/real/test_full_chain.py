"""Runtimes on the whole chain of ours, in both versions of IP.

bridge, host-local, ipMasq, portmap, bandwidth, tuning and firewall.

containerd without kubelet is in `test_containerd_networks`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from tests.real.consumers import Lab, PrivateNode
from tests.real.consumers.kubelet_process import pod
from tests.real.test_containerd_networks import ASK, OUTSIDE
from tests.real.test_podman import IMAGE, podman_in

from nodeplug.testing import ScratchNode

CHAIN = Path(__file__).parent / "chain" / "10-chain.conflist"
PLUGINS = """
[plugins.bridge]
[plugins.bandwidth]
[plugins.tuning]
[plugins.firewall]
[plugins.portmap.config]
reserve = false
"""
PORT = 18080
LIMITED = ["bwp", "vet"]
SERVE = "while true; do echo here | /bin/busybox nc -l -p 80; done &"


@contextmanager
def dropping(node: PrivateNode) -> Iterator[None]:
    """A host that drops what it forwards, as Docker leaves it."""
    node.run("iptables", "-P", "FORWARD", "DROP")
    yield
    node.run("iptables", "-P", "FORWARD", "ACCEPT")


def ask_from_outside(node: PrivateNode) -> str:
    (uplink,) = json.loads(node.run("ip", "-json", "-4", "address", "show", "uplink0"))
    address = uplink["addr_info"][0]["local"]
    said = node.run("ip", "netns", "exec", "outside", sys.executable, "-c", ASK, address, str(PORT))
    return said.strip()


def rules_about(node: PrivateNode, needle: str) -> list[str]:
    lines = [*node.run("iptables", "-S").splitlines(), *node.run("nft", "list", "ruleset").splitlines()]
    return [line for line in lines if needle in line]


def limited(node: PrivateNode) -> list[str]:
    """The limits of what containers receive and send: both ends of the road to them."""
    found = json.loads(node.run("/usr/sbin/tc", "-json", "qdisc", "show"))
    return sorted({one["dev"][:3] for one in found if one["kind"] == "tbf"})


def start(lab: Lab, name: str, port: int) -> str:
    """Run a pod of kubelet that answers at a port of the node; its address."""
    manifest = pod(name, SERVE)
    manifest["spec"]["containers"][0]["ports"] = [{"containerPort": 80, "hostPort": port}]
    lab.kubelet.put(manifest)
    return str(lab.kubelet.running(name)["status"]["podIP"])


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    with make_kubelet_lab(CHAIN) as made:
        made.private.run("sh", "-ec", OUTSIDE)
        # What a network with a port has, such as tables and chains, is the same before and after a test.
        start(made, "first", PORT + 1)
        made.kubelet.residents.add("first")
        yield made


def test_a_pod_of_kubelet_is_reached_and_reaches_others_and_leaves_nothing(lab: Lab) -> None:
    before = lab.inventory()
    address = start(lab, "server", PORT)
    assert address.startswith("10.94.0.")
    assert ask_from_outside(lab.private) == "here"
    with dropping(lab.private):
        lab.kubelet.execute("server", "/bin/ping", "-c", "1", "-W", "2", "10.230.0.1")
    assert lab.kubelet.execute("server", "/bin/cat", "/proc/sys/net/core/somaxconn").strip() == "512"
    assert "mtu 1300" in lab.kubelet.execute("server", "/bin/ip", "link", "show", "eth0")
    assert limited(lab.private) == LIMITED
    assert rules_about(lab.private, address) != []
    lab.kubelet.drop("server")
    assert lab.since(before) == []
    assert rules_about(lab.private, address) == []


def test_a_container_of_podman_is_reached_and_reaches_others_and_leaves_nothing(
    private_node: PrivateNode, short_path: Path
) -> None:
    private_node.run("sh", "-ec", OUTSIDE)
    with ScratchNode(private_node.folder, PLUGINS, beside=private_node.pid, fork=True) as daemon:
        assert daemon.run("install").returncode == 0
        with podman_in(short_path, private_node.command(), daemon, CHAIN) as podman:
            options = ("--network", podman.network, "--publish", f"{PORT}:80")
            podman("run", "--detach", "--name", "server", *options, IMAGE, "/bin/sh", "-c", f"{SERVE} wait")
            address = podman.address("server")
            assert ask_from_outside(private_node) == "here"
            with dropping(private_node):
                podman("exec", "server", "/bin/busybox", "ping", "-c", "1", "-W", "2", "10.230.0.1")
            assert podman("exec", "server", "/bin/cat", "/proc/sys/net/core/somaxconn") == "512"
            assert "mtu 1300" in podman("exec", "server", "/bin/ip", "link", "show", "eth0")
            assert limited(private_node) == LIMITED
            assert rules_about(private_node, address) != []
            podman("rm", "--force", "--time", "0", "server")
            assert rules_about(private_node, address) == []
            assert podman.reserved() == []
            assert [link for link in podman.links() if link.startswith("veth")] == []
        assert daemon.status()["attachments"] == []
