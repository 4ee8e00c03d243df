"""Whole lists, by the reference's current plugins and by ours: published networks, and a chain with all that it has.

Each runs in a "host" and a container of its own; `twins` says what is compared, and what differs on purpose.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.real.published import NETWORKS, delegated
from tests.real.twins import Side, come_to_the_same, node_with, prepare, twins
from tests.suites import divided

from nodeplug.testing import ScratchNode

PLUGINS = ("bridge", "ptp", "macvlan", "host-local", "portmap", "bandwidth", "tuning", "firewall")
RATES = {"ingressRate": 10**8, "ingressBurst": 10**6, "egressRate": 10**8, "egressBurst": 10**6}
ARP = "net.ipv4.conf.IFNAME.arp_filter"
DUAL = [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts, containers and folders of its own."""
    with node_with(*PLUGINS) as made:
        yield made


@pytest.fixture
def sides(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[tuple[Side, ...]]:
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), PLUGINS)) as made:
        yield made


@pytest.mark.parametrize("name", divided(NETWORKS, sorted(NETWORKS)[::2], ()))
def test_a_published_network_comes_to_the_same(sides: tuple[Side, ...], name: str) -> None:
    published = NETWORKS[name]
    conflist = published.conflist
    if name == "flannel":
        conflist = delegated(conflist, "10.244.0.0/16", "10.244.1.0/24", 1450, masquerade=True)
    for side in sides:
        prepare(side, *published.links)
    come_to_the_same(sides, conflist)


@pytest.mark.parametrize(
    ("version", "policy"), [("0.4.0", "open"), ("1.0.0", "same-bridge"), ("1.1.0", "isolated"), ("1.1.0", "open")]
)
def test_the_whole_chain_comes_to_the_same(sides: tuple[Side, ...], version: str, policy: str) -> None:
    ipam = {"type": "host-local", "ranges": DUAL}
    rates = RATES if version != "1.0.0" else {"capabilities": {"bandwidth": True}}
    tuned = {"mtu": 1300, "txQLen": 77, "allmulti": True, "sysctl": {ARP: "1", "net.core.somaxconn": "512"}}
    plugins = [
        {
            "type": "bridge",
            "bridge": "br0",
            "isDefaultGateway": True,
            "ipMasq": True,
            "hairpinMode": True,
            "ipam": ipam,
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
        {"type": "bandwidth", **rates},
        {"type": "tuning", **tuned},
        {"type": "firewall", "ingressPolicy": policy},
    ]
    for side in sides:
        prepare(side)
    come_to_the_same(sides, {"cniVersion": version, "name": "chain", "plugins": plugins})


def test_a_tuned_macvlan_comes_to_the_same(sides: tuple[Side, ...]) -> None:
    ipam = {"type": "host-local", "ranges": DUAL, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
    plugins = [
        {"type": "macvlan", "master": "eth0", "mtu": 1400, "mode": "private", "ipam": ipam},
        {"type": "tuning", "mtu": 1300, "promisc": True, "sysctl": {ARP: "1"}},
    ]
    for side in sides:
        prepare(side, "eth0")
    come_to_the_same(sides, {"cniVersion": "1.0.0", "name": "chain", "plugins": plugins})
