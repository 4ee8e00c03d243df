"""A pod on two networks: containerd calls both at the same time, for `eth0` and for `eth1`.

The first is the whole chain: bridge, host-local, ipMasq, portmap, bandwidth, tuning and firewall.
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.real.consumers import Containerd, PrivateNode

from nodeplug.testing import ScratchNode, folders

NETWORKS = Path(__file__).parent / "networks"
PLUGINS = """
[plugins.bridge]
[plugins.portmap]
[plugins.bandwidth]
[plugins.tuning]
[plugins.firewall]
[plugins.loopback.config]
names = ["loopback"]
"""
PORTS = [{"container_port": 80, "host_port": 18080}]
# Somebody beyond the node, who knows no way back to the pods' addresses.
OUTSIDE = """
ip netns add outside
ip link add outside0 type veth peer name eth0 netns outside
ip link set outside0 master uplink0 up
ip -n outside address add 10.230.0.1/24 dev eth0
ip -n outside link set eth0 up
"""


# Ask until somebody listens.
ASK = """
import socket, sys, time
for _ in range(100):
    try:
        with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
            print(connection.recv(100).decode())
            break
    except ConnectionRefusedError:
        time.sleep(0.2)
"""


@dataclass(frozen=True)
class Lab:
    """A containerd whose pods join both networks."""

    private: PrivateNode
    daemon: ScratchNode
    containerd: Containerd

    def run(self, name: str, **more: Any) -> str:
        return self.containerd.cri.run(name, **more)

    def end(self, sandbox: str) -> None:
        self.containerd.cri.stop(sandbox)
        self.containerd.cri.remove(sandbox)

    def inside(self, sandbox: str, *command: str) -> str:
        return self.containerd.execute(sandbox, *command)

    def addresses(self, sandbox: str) -> dict[str, list[str]]:
        """Return the addresses of each interface of a sandbox, link-local ones aside."""
        found: dict[str, list[str]] = {}
        for line in self.inside(sandbox, "/bin/ip", "-o", "address", "show", "scope", "global").splitlines():
            words = line.split()
            found.setdefault(words[1], []).append(words[3])
        return found

    @property
    def watched(self) -> tuple[Path, Path]:
        return self.private.folder / "var", self.daemon.paths.run


@pytest.fixture(scope="module")
def lab(make_private_node: Callable[..., PrivateNode], runtime: Path | None) -> Iterator[Lab]:
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    (folder / "c").mkdir()
    with make_private_node(folder / "n") as node:
        node.run("sh", "-ec", OUTSIDE)
        with ScratchNode(node.folder, PLUGINS, beside=node.pid, fork=True) as daemon:
            conflists = [word for path in sorted(NETWORKS.glob("*.conflist")) for word in ("--conflist", str(path))]
            installed = daemon.run("install", *conflists)
            assert installed.returncode == 0, installed.stderr
            paths = daemon.paths
            with Containerd(
                node, folder / "c", paths.cni_bin, paths.cni_conf, networks=2, programs=runtime
            ) as containerd:
                made = Lab(node, daemon, containerd)
                # What a network with a pod has (bridges, records) is the same before and after a test.
                first = made.run("first", ports=[{"container_port": 80, "host_port": 18081}])
                yield made
                made.end(first)
        sys.stdout.write(daemon.log)  # shown when the last test fails
    folders.remove(folder)


@pytest.fixture
def sandbox(lab: Lab) -> Iterator[str]:
    """A sandbox that is gone without a trace when the test is over."""
    before = lab.private.inventory(*lab.watched)
    made = lab.run(
        "pod",
        annotations={"kubernetes.io/ingress-bandwidth": "10M"},
        ports=PORTS,
    )
    yield made
    lab.end(made)
    assert lab.private.inventory_since(before, *lab.watched) == []


def test_each_interface_has_one_address_of_every_range_set_of_its_network(lab: Lab, sandbox: str) -> None:
    found = lab.addresses(sandbox)
    assert [address.rpartition(".")[0] for address in found["eth0"][:1]] == ["10.91.0"]
    assert 100 <= int(found["eth0"][0].partition("/")[0].rpartition(".")[2]) <= 199
    assert found["eth0"][1].startswith("fd10:91::")
    assert [address.rpartition(".")[0] for address in found["eth1"]] == ["10.92.0", "10.93.0"]
    assert lab.containerd.cri.address(sandbox) == found["eth0"][0].partition("/")[0]


def test_every_gateway_answers(lab: Lab, sandbox: str) -> None:
    for gateway in ("10.91.0.1", "10.92.0.254", "10.93.0.1"):
        lab.inside(sandbox, "/bin/ping", "-c", "1", "-W", "2", gateway)
    lab.inside(sandbox, "/bin/ping6", "-c", "1", "-W", "2", "fd10:91::1")


def test_routes_lead_where_each_network_says(lab: Lab, sandbox: str) -> None:
    lines = lab.inside(sandbox, "/bin/ip", "route").splitlines()
    routes = {words[0]: (words[2], words[4]) for words in map(str.split, lines) if words[1] == "via"}
    assert routes == {
        "default": ("10.91.0.1", "eth0"),
        "192.0.2.0/24": ("10.91.0.1", "eth0"),
        "198.51.100.0/24": ("10.92.0.254", "eth1"),
        "203.0.113.0/24": ("10.93.0.1", "eth1"),
    }
    assert "default via fd10:91::1 dev eth0" in lab.inside(sandbox, "/bin/ip", "-6", "route")


def test_only_the_masqueraded_network_reaches_those_who_know_no_way_back(lab: Lab, sandbox: str) -> None:
    found = lab.addresses(sandbox)
    ping = ("/bin/ping", "-c", "1", "-W", "1")
    lab.inside(sandbox, *ping, "10.230.0.1")
    from_second = found["eth1"][0].partition("/")[0]
    script = f"! {' '.join(ping)} -I {from_second} 10.230.0.1"
    lab.inside(sandbox, "/bin/sh", "-c", script)


def test_ports_and_bridges_are_as_each_network_says(lab: Lab, sandbox: str) -> None:
    ports = {
        port["master"]: (port["hairpin"], port["mtu"])
        for port in json.loads(lab.private.run("bridge", "-details", "-json", "link"))
        if port["ifname"].startswith("veth")
    }
    assert ports == {"np-first": (True, 1500), "np-second": (False, 1400)}
    (second,) = json.loads(lab.private.run("ip", "-details", "-json", "link", "show", "np-second"))
    assert (second["mtu"], second["promiscuity"] > 0) == (1400, True)
    assert "mtu 1400" in lab.inside(sandbox, "/bin/ip", "link", "show", "eth1")


def test_the_pod_answers_at_its_host_port_to_those_who_know_no_way_to_it(lab: Lab, sandbox: str) -> None:
    (uplink,) = json.loads(lab.private.run("ip", "-json", "-4", "address", "show", "uplink0"))
    address = uplink["addr_info"][0]["local"]
    with ThreadPoolExecutor(1) as pool:
        pool.submit(
            lab.inside, sandbox, "/bin/sh", "-c", "echo here | /bin/busybox timeout 60 /bin/busybox nc -l -p 80"
        )
        said = lab.private.run("ip", "netns", "exec", "outside", sys.executable, "-c", ASK, address, "18080")
    assert said.strip() == "here"


def test_on_a_host_that_drops_what_it_forwards_the_network_with_the_firewall_alone_reaches_others(
    lab: Lab, sandbox: str
) -> None:
    ping = ("/bin/ping", "-c", "1", "-W", "1", "-I")
    lab.private.run("iptables", "-P", "FORWARD", "DROP")
    try:
        lab.inside(sandbox, *ping, "eth0", "10.230.0.1")
        rules = lab.private.run("iptables", "-S", "CNI-FORWARD")
    finally:
        lab.private.run("iptables", "-P", "FORWARD", "ACCEPT")
    found = lab.addresses(sandbox)
    assert [found[link][0].partition("/")[0] in rules for link in ("eth0", "eth1")] == [True, False]


def test_a_sysctl_of_the_network_is_the_pods(lab: Lab, sandbox: str) -> None:
    assert lab.inside(sandbox, "/bin/cat", "/proc/sys/net/core/somaxconn").strip() == "512"


def test_the_pods_annotation_limits_what_it_receives_on_the_network_that_asks_for_it(lab: Lab, sandbox: str) -> None:
    ports = json.loads(lab.private.run("bridge", "-details", "-json", "link"))
    master = {port["ifname"]: port["master"] for port in ports}
    limits = json.loads(lab.private.run("/usr/sbin/tc", "-json", "qdisc", "show"))
    found = [(master.get(one["dev"]), one["options"]["rate"]) for one in limits if one["kind"] == "tbf"]
    assert found == [("np-first", 10_000_000 // 8)]


def test_a_pod_that_wants_a_port_of_another_is_refused_with_its_name(lab: Lab, sandbox: str) -> None:
    before = set(lab.containerd.cri.sandboxes())
    with pytest.raises(grpc.RpcError, match=rf"host port 18080/tcp belongs to 'nodeplug first {sandbox} eth0'"):
        lab.run("second", ports=PORTS)
    for left in set(lab.containerd.cri.sandboxes()) - before:
        lab.end(left)


@pytest.mark.soak
def test_dozens_of_pods_at_once_get_addresses_of_their_own_on_both(lab: Lab, sandbox: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lab.run, [f"pod-{number}" for number in range(24)]))
        found = [address for one in [sandbox, *made] for all_ in lab.addresses(one).values() for address in all_]
        list(pool.map(lab.end, made))
    assert len(found) == len(set(found)) == 25 * 4
