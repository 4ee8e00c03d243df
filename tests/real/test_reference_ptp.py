"""ptp of the reference and ours, side by side: the same configuration must come to the same thing."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import node_with

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
V4 = {"ranges": [[{"subnet": "10.77.0.0/24"}]]}
DUAL = {
    "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "10.77.0.9"}, {"dst": "::/0"}],
}
FIXED = {
    "type": "static",
    "addresses": [
        {"address": "10.77.0.5/24", "gateway": "10.77.0.1"},
        {"address": "fd77::5/128", "gateway": "fd77::1"},
    ],
    "dns": {"nameservers": ["192.0.2.9"]},
}
VARIANTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, V4),
    "dual-stack": ({}, DUAL),
    "mtu": ({"mtu": 1400}, V4),
    "masquerade": ({"ipMasq": True}, DUAL),
    "backend-nftables": ({"ipMasq": True, "ipMasqBackend": "nftables"}, V4),
    "backend-iptables": ({"ipMasq": True, "ipMasqBackend": "iptables"}, V4),
    "static": ({}, FIXED),
    "gateway-elsewhere": ({}, {"ranges": [[{"subnet": "10.77.0.0/24", "gateway": "10.99.0.1"}]]}),
    "dns": ({"dns": {"nameservers": ["192.0.2.1"], "search": ["a"]}}, FIXED),
    "dns-empty-list": ({"dns": {"nameservers": []}}, FIXED),
    "dns-of-ipam": ({"dns": {}}, FIXED),
    "two-of-a-family": ({}, {"ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.78.0.0/24"}]]}),
}


@dataclass(frozen=True)
class Side:
    """One implementation, on a "host" of its own."""

    name: str
    folder: Path
    bins: tuple[Path, ...]
    type: str
    host: Sandbox
    pod: Sandbox

    def runtime(self, version: str, keys: Mapping[str, Any], ipam: Mapping[str, Any]) -> CniRuntime:
        folder = str(self.folder / "addresses")
        plugin = {"type": self.type, "ipam": {"type": "host-local", "dataDir": folder, **ipam}, **keys}
        return CniRuntime(
            {"cniVersion": version, "name": self.folder.parent.name, "plugins": [plugin]},
            list(self.bins),
            cache_dir=self.folder / "cache",
        )

    def add(self, runtime: CniRuntime, container: str = "c0") -> dict[str, Any]:
        with self.host.netns.entered():
            return dict(runtime.add(container, self.pod.path))

    def show(self, *arguments: str, where: Sandbox | None = None) -> Any:
        command = ["nsenter", f"--net={(where or self.pod).path}", "ip", "-j", *arguments]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout or "[]")


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with("ptp") as made:
        yield made


@pytest.fixture
def sides(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:

        def side(name: str, kind: str, *bins: Path) -> Side:
            host, pod = (stack.enter_context(Sandbox(short_path / f"{name}-{end}")) for end in ("host", "pod"))
            folder = short_path / name
            folder.mkdir()
            return Side(name, folder, bins, kind, host, pod)

        reference = consumer("cni")
        yield side("theirs", "ptp", reference), side("ours", "nodeplug-ptp", node.paths.cni_bin, reference)


def comparable(result: Any, side: Side) -> Any:
    """A result without what differs by chance: MACs, the host veth's name, the sandbox's path."""
    document = json.loads(json.dumps(result).replace(str(side.pod.path), "SANDBOX"))
    if not document.get("dns"):
        document.pop("dns", None)
    for interface in document.get("interfaces", []):
        interface["mac"] = interface.get("mac") and "MAC"
        if interface["name"].startswith("veth"):
            interface["name"] = "VETH"
    return document


KEYS = ("dst", "gateway", "dev", "scope", "protocol", "prefsrc", "metric", "type")


def world(side: Side) -> Any:
    """Addresses and routes of the pod and of its host, without names and link-local ones."""
    found: list[Any] = []
    for where in (side.pod, side.host):
        for link in side.show("addr", where=where):
            own = [entry for entry in link["addr_info"] if entry["scope"] != "link" and link["ifname"] != "lo"]
            found += sorted((one["local"], one["prefixlen"], one["scope"], one.get("broadcast")) for one in own)
            found.append((link["ifname"][:4], link["mtu"], sorted({"UP", "LOWER_UP"}.intersection(link["flags"]))))
        for family in ("-4", "-6"):
            shown = side.show(family, "-d", "route", where=where)
            routes = [[one.get(key) for key in KEYS] for one in shown if not one["dst"].startswith("fe80")]
            found.append(
                sorted(str(["veth" if str(word).startswith("veth") else word for word in one]) for one in routes)
            )
    return found


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], version: str) -> None:
    results = [comparable(side.add(side.runtime(version, {}, DUAL)), side) for side in sides]
    assert results[1] == results[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_container_and_the_host_see_the_same(sides: tuple[Side, Side], variant: str) -> None:
    keys, ipam = VARIANTS[variant]
    results = [comparable(side.add(side.runtime("1.1.0", keys, ipam)), side) for side in sides]
    assert results[1] == results[0]
    assert world(sides[1]) == world(sides[0])


def forwarding(side: Side) -> list[str]:
    with side.host.netns.entered():
        names = ("ipv4/ip_forward", "ipv6/conf/all/forwarding")
        return [Path("/proc/sys/net", name).read_text().strip() for name in names]


@pytest.mark.parametrize("ipam", [V4, DUAL, {"ranges": [[{"subnet": "fd77::/64"}]]}], ids=["v4", "dual", "v6"])
def test_the_host_forwards_alike(sides: tuple[Side, Side], ipam: dict[str, Any]) -> None:
    for side in sides:
        side.add(side.runtime("1.0.0", {}, ipam))
    assert forwarding(sides[1]) == forwarding(sides[0])


@pytest.mark.parametrize("keys", [{}, {"ipMasq": True}, {"ipMasq": True, "ipMasqBackend": "nftables"}], ids=str)
def test_what_the_reference_attached_is_checked_and_ended_whole(sides: tuple[Side, Side], keys: dict[str, Any]) -> None:
    theirs, ours = sides
    runtime = theirs.runtime("1.1.0", keys, DUAL)
    theirs.add(runtime)
    (plugin,) = runtime.conflist["plugins"]
    moved = CniRuntime(
        {**runtime.conflist, "plugins": [{**plugin, "type": "nodeplug-ptp"}]},
        [ours.bins[0]],
        cache_dir=theirs.folder / "cache",
    )
    with theirs.host.netns.entered():
        moved.check("c0")
        moved.delete("c0", theirs.pod.path)
        rules = subprocess.run(["nft", "list", "ruleset"], capture_output=True, check=True, text=True).stdout
    assert theirs.pod.links() == theirs.host.links() == ("lo",)
    assert "10.77." not in rules
    assert [
        one.name for one in (theirs.folder / "addresses" / theirs.folder.parent.name).iterdir() if one.name[0].isdigit()
    ] == []


def test_gc_ends_what_the_reference_attached_and_keeps_what_is_valid(sides: tuple[Side, Side]) -> None:
    theirs, ours = sides
    runtime = theirs.runtime("1.1.0", {"ipMasq": True}, V4)
    theirs.add(runtime, "c0")
    (plugin,) = runtime.conflist["plugins"]
    moved = CniRuntime(
        {**runtime.conflist, "plugins": [{**plugin, "type": "nodeplug-ptp"}]},
        [ours.bins[0]],
        cache_dir=theirs.folder / "empty",
    )
    with theirs.host.netns.entered():
        moved.gc([("c0", "eth0")])
        assert "eth0" in theirs.pod.links()
        moved.gc([])
    assert theirs.pod.links() == theirs.host.links() == ("lo",)


def test_the_reference_ends_what_ours_attached(sides: tuple[Side, Side]) -> None:
    theirs, ours = sides
    runtime = ours.runtime("1.0.0", {}, DUAL)
    ours.add(runtime)
    (plugin,) = runtime.conflist["plugins"]
    moved = CniRuntime(
        {**runtime.conflist, "plugins": [{**plugin, "type": "ptp"}]}, list(theirs.bins), cache_dir=ours.folder / "cache"
    )
    with ours.host.netns.entered():
        moved.check("c0")
        moved.delete("c0", ours.pod.path)
    assert ours.pod.links() == ours.host.links() == ("lo",)


def test_a_single_address_is_refused_by_the_reference_alone(sides: tuple[Side, Side]) -> None:
    theirs, ours = sides
    ipam = {"type": "static", "addresses": [{"address": "10.77.0.5/32", "gateway": "10.77.0.1"}]}
    with pytest.raises(CniError, match="failed to delete route"):
        theirs.add(theirs.runtime("1.0.0", {}, ipam))
    assert ours.add(ours.runtime("1.0.0", {}, ipam))["ips"][0]["address"] == "10.77.0.5/32"


def test_the_reference_leaves_a_link_when_it_fails_and_ours_does_not(sides: tuple[Side, Side]) -> None:
    left = []
    for side in sides:
        ipam = {**V4, "routes": [{"dst": "10.1.0.0/16", "gw": "172.16.0.1"}]}
        with pytest.raises(CniError):
            side.add(side.runtime("1.0.0", {}, ipam))
        left.append(len(side.host.links()) - 1)
    assert left == [1, 0]
