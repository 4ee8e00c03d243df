"""One chain whose members are the reference's and ours in turn: it must come to what the reference's own does.

Each member finds what the others made by the result alone, and by what they left in the kernel.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import Side, come_to_the_same, node_with, prepare, twins

from nodeplug.testing import ScratchNode

PLUGINS = ("bridge", "host-local", "portmap", "bandwidth", "tuning", "firewall", "sbr")
ARP = "net.ipv4.conf.IFNAME.arp_filter"
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}
CHAIN: tuple[dict[str, Any], ...] = (
    {"type": "bridge", "bridge": "br0", "isDefaultGateway": True, "ipMasq": True, "hairpinMode": True, "ipam": IPAM},
    {"type": "portmap", "capabilities": {"portMappings": True}},
    {"type": "bandwidth", "capabilities": {"bandwidth": True}},
    {"type": "tuning", "mtu": 1300, "txQLen": 77, "allmulti": True, "sysctl": {ARP: "1"}},
    {"type": "firewall", "ingressPolicy": "same-bridge"},
)
KINDS = tuple(plugin["type"] for plugin in CHAIN)
MIXTURES: dict[str, Collection[str]] = {
    "ours-first": KINDS[::2],
    "reference-first": KINDS[1::2],
    "ours": KINDS,
}
CASES = [
    ("0.3.0", "ours"),
    ("0.3.1", "ours"),
    ("0.3.1", "ours-first"),
    ("0.3.1", "reference-first"),
    ("0.4.0", "ours-first"),
    ("1.0.0", "reference-first"),
    ("1.1.0", "ours-first"),
    ("1.1.0", "reference-first"),
]


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts, containers and folders of its own."""
    with node_with(*PLUGINS) as made:
        yield made


@pytest.fixture
def sides(
    short_path: Path, node: ScratchNode, consumer: Callable[[str], Path], mixture: str
) -> Iterator[tuple[Side, ...]]:
    kinds = ((), MIXTURES[mixture])
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=kinds) as made:
        for side in made:
            prepare(side)
        yield made


@pytest.mark.parametrize(
    ("version", "mixture"),
    [case if case in CASES[::3] else pytest.param(*case, marks=pytest.mark.soak) for case in CASES],
)
def test_a_chain_of_both_comes_to_what_the_references_does(sides: tuple[Side, ...], version: str) -> None:
    chain = CHAIN[:-1] if version.startswith("0.3") else CHAIN  # the reference's firewall begins with 0.4.0
    come_to_the_same(sides, {"cniVersion": version, "name": "chain", "plugins": chain})
    assert [left(side) for side in sides] == [[], []]


@pytest.mark.parametrize("mixture", ["ours-first", "reference-first"])
def test_a_chain_of_both_ends_with_routes_by_source(sides: tuple[Side, ...]) -> None:
    """The reference's bridge fails each CHECK once sbr has carried its default route to another table."""
    plugins = [*CHAIN, {"type": "sbr"}]
    come_to_the_same(sides, {"cniVersion": "1.1.0", "name": "chain", "plugins": plugins, "disableCheck": True})


def left(side: Side) -> list[str]:
    """Rules of either kind that still lead to the container, which is gone."""
    rules = side.run(side.host, "nft", "list", "ruleset").splitlines()
    return [line.strip() for line in rules if "10.77.0.2" in line or "18080" in line]
