"""Plugins of the reference for an interface in the container alone, and ours: the same keys must come to the same."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.link_kinds import need_kind
from tests.programs import need
from tests.real.twins import node_with
from tests.suites import divided

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
MAC = "02:00:00:00:00:11"
ROUTES = [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "192.0.2.9"}]
IPAM: dict[str, Any] = {
    "type": "static",
    "addresses": [{"address": "192.0.2.5/24", "gateway": "192.0.2.1"}, {"address": "fd77::5/64", "gateway": "fd77::1"}],
    "routes": [*ROUTES, {"dst": "::/0"}],
    "dns": {"nameservers": ["192.0.2.9"]},
}
V4 = {"type": "static", "addresses": [{"address": "192.0.2.5/24"}]}
DNS = {"ipam": IPAM, "dns": {"search": ["a"]}}
KEYS: Mapping[str, Mapping[str, dict[str, Any]]] = {
    "host-device": {
        "plain": {"device": "up0"},
        "addresses": {"device": "up0", "ipam": IPAM},
        "dns": {"device": "up0", **DNS},
        "dns-without-addresses": {"device": "up0", "dns": {"search": ["a"]}},
        "by-mac": {"hwaddr": MAC, "ipam": IPAM},
        "driven-by-programs": {"device": "up0", "DPDKMode": True, **DNS},
    },
    "tap": {
        "plain": {},
        "dns": {**DNS},
        "mac-and-mtu": {"mac": MAC, "mtu": 1400},
        "mac-of-the-runtime": {
            "mac": "02:00:00:00:00:05",
            "runtimeConfig": {"mac": MAC},
            "capabilities": {"mac": True},
        },
        "queues": {"multiQueue": True},
        "owner": {"owner": 5},
        "group": {"group": 6, "ipam": V4},
        "owner-and-group": {"owner": 5, "group": 6},
        "owner-and-group-and-queues": {"owner": 0, "group": 0, "multiQueue": True},
        "bridge": {"bridge": "own0"},
    },
    "dummy": {"addresses": {"ipam": IPAM}, "dns": {**DNS}},
    "ipvlan": {
        "dns": {"master": "up0", **DNS},
        "mode-l3": {"master": "up0", "mode": "l3", "mtu": 1400, "ipam": V4},
        "mode-l3s": {"master": "up0", "mode": "l3s", "ipam": V4},
        "inside": {"master": "own0", "linkInContainer": True, "ipam": V4},
    },
    "vlan": {
        "dns": {"master": "up0", "vlanId": 5, **DNS},
        "mtu": {"master": "up0", "vlanId": 4094, "mtu": 1400, "ipam": V4},
        "inside": {"master": "own0", "vlanId": 7, "linkInContainer": True, "ipam": V4},
    },
    "vrf": {"dns": {"vrfname": "blue"}, "table": {"vrfname": "blue", "table": 300}},
}
LACKED = ("dummy", "ipvlan", "vlan", "vrf")
"""Kinds of links that a kernel may lack."""
CASES = [
    pytest.param(plugin, keys, id=f"{plugin}-{name}") for plugin, all_ in KEYS.items() for name, keys in all_.items()
]
FULL = {plugin: all_["dns"] for plugin, all_ in KEYS.items()}
DRAWN = re.compile(r"(?!02:00:00:00:00)([0-9a-f]{2}:){5}[0-9a-f]{2}")
ROUTE = ("dst", "gateway", "dev", "table", "scope", "protocol", "prefsrc", "metric", "type")
ADDRESS = ("local", "prefixlen", "scope", "broadcast")


@dataclass(frozen=True)
class Side:
    """One implementation, on a "host" of its own, whose interface up0 is wired to up1."""

    whose: str
    folder: Path
    bins: tuple[Path, ...]
    host: Sandbox
    pod: Sandbox

    def runtime(self, version: str, plugin: str, keys: Mapping[str, Any]) -> CniRuntime:
        prefix = "nodeplug-" if self.whose == "ours" else ""
        plugins = [{"type": f"{prefix}{plugin}", **keys}]
        if plugin == "vrf":  # for an interface that another plugin made
            plugins.insert(0, {"type": f"{prefix}host-device", "device": "up0", **DNS})
        document: dict[str, Any] = {"cniVersion": version, "name": self.folder.parent.name, "plugins": plugins}
        # The reference's host-device misses the routes that vrf has carried to another table.
        document["disableCheck"] = plugin == "vrf"
        return CniRuntime(document, list(self.bins), cache_dir=self.folder / "cache")

    def add(self, version: str, plugin: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        with self.host.netns.entered():
            return dict(self.runtime(version, plugin, keys).add("c0", self.pod.path))

    def run(self, where: Sandbox, *words: str) -> str:
        command = ["nsenter", f"--net={where.path}", "ip", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def show(self, where: Sandbox, *words: str) -> Any:
        return json.loads(self.run(where, "-j", "-d", *words) or "[]")


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with(*KEYS) as made:
        yield made


@pytest.fixture
def sides(
    short_path: Path, node: ScratchNode, consumer: Callable[[str], Path], plugin: str
) -> Iterator[tuple[Side, Side]]:
    need("ip")
    if plugin in LACKED:
        need_kind(plugin)
    with ExitStack() as stack:

        def side(name: str, *bins: Path) -> Side:
            host, pod = (stack.enter_context(Sandbox(short_path / f"{name}-{end}")) for end in ("host", "pod"))
            (short_path / name).mkdir()
            made = Side(name, short_path / name, bins, host, pod)
            made.run(host, "link", "add", "up0", "address", MAC, "type", "veth", "peer", "name", "up1")
            for link in ("up0", "up1"):
                made.run(host, "link", "set", link, "up")
            made.run(pod, "link", "add", "own0", "type", "bridge")
            made.run(pod, "link", "set", "own0", "up")
            return made

        reference = consumer("cni")
        yield side("theirs", reference), side("ours", node.paths.cni_bin, reference)


def comparable(result: Any, side: Side) -> Any:
    """A result without the sandbox's path and drawn hardware addresses, which differ by chance."""
    document = json.loads(DRAWN.sub("DRAWN", json.dumps(result).replace(str(side.pod.path), "SANDBOX")))
    if not document.get("dns"):
        document.pop("dns", None)
    return document


def world(side: Side) -> Any:
    """What the container has, and what the host has still."""
    host = [(one["ifname"], one.get("ifalias"), "UP" in one["flags"]) for one in side.show(side.host, "link", "show")]
    if "eth0" not in side.pod.links():
        return host
    (link,) = side.show(side.pod, "addr", "show", "eth0")
    own = [[one.get(key) for key in ADDRESS] for one in link["addr_info"] if one["scope"] != "link"]
    routes = [
        str([one.get(key) for key in ROUTE])
        for family in ("-4", "-6")
        for one in side.show(side.pod, family, "route", "show", "table", "all", "dev", "eth0")
        if one.get("type", "unicast") == "unicast" and not one["dst"].startswith("fe80")  # the others are the kernel's
    ]
    with side.pod.netns.entered():
        names = ("ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify", "ipv6/conf/eth0/keep_addr_on_down")
        settings = [Path("/proc/sys/net", name).read_text().strip() for name in names]
    kept = {key: value for key, value in link.get("linkinfo", {}).items() if key in {"info_kind", "info_data"}}
    described = [link["mtu"], DRAWN.sub("DRAWN", link["address"]), alias_of(link), kept, link.get("master")]
    others = [
        (one["ifname"], alias_of(one), one.get("linkinfo"))
        for one in side.show(side.pod, "link", "show", "type", "vrf")
        if one
    ]
    return host, described, others, "UP" in link["flags"], sorted(own, key=str), sorted(routes), settings


def alias_of(link: dict[str, Any]) -> str | None:
    """The alias, but for our label: the reference has none."""
    alias = link.get("ifalias")
    return None if alias is None or alias.startswith("nodeplug ") else str(alias)


@pytest.mark.parametrize("version", divided(VERSIONS, {"0.2.0", "0.4.0", "1.1.0"}, ()))
@pytest.mark.parametrize("plugin", KEYS)
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], plugin: str, version: str) -> None:
    if plugin == "vrf" and version < "0.3.1":
        with pytest.raises(CniError, match="incompatible CNI versions"):
            sides[0].add(version, plugin, FULL[plugin])
        return
    # Few with IPv6: the kernel asks for two seconds whether somebody has its addresses.
    ipam = IPAM if version in {"0.2.0", "1.0.0"} else {**IPAM, "addresses": IPAM["addresses"][:1], "routes": ROUTES}
    keys = FULL[plugin] if plugin == "vrf" else {**FULL[plugin], "ipam": ipam}
    results = [comparable(side.add(version, plugin, keys), side) for side in sides]
    assert results[1] == results[0]


@pytest.mark.parametrize(("plugin", "keys"), CASES)
def test_the_container_sees_the_same_and_the_host_gets_the_same_back(
    sides: tuple[Side, Side], plugin: str, keys: dict[str, Any]
) -> None:
    results = [comparable(side.add("1.1.0", plugin, keys), side) for side in sides]
    assert results[1] == results[0]
    assert world(sides[1]) == world(sides[0])
    for side in sides:
        with side.host.netns.entered():
            runtime = side.runtime("1.1.0", plugin, keys)
            runtime.check("c0")
            runtime.delete("c0", side.pod.path)
        assert "eth0" not in side.pod.links()
    assert world(sides[1]) == world(sides[0])


@pytest.mark.parametrize("plugin", KEYS)
def test_each_checks_and_ends_what_the_other_attached(sides: tuple[Side, Side], plugin: str) -> None:
    theirs, ours = sides
    for side, other in ((theirs, ours), (ours, theirs)):
        before = world(side)
        side.add("1.1.0", plugin, FULL[plugin])
        moved = Side(other.whose, side.folder, other.bins, side.host, side.pod)
        with side.host.netns.entered():
            runtime = moved.runtime("1.1.0", plugin, FULL[plugin])
            runtime.check("c0")
            runtime.delete("c0", side.pod.path)
        assert "eth0" not in side.pod.links()
        assert [one[:2] for one in world(side)] == [one[:2] for one in before]
