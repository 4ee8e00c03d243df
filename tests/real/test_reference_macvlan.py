"""macvlan of the reference and ours, side by side: the same configuration must come to the same thing."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import node_with
from tests.suites import divided

from nodeplug.testing import CniRuntime, Sandbox, ScratchNode

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
IPAM = {
    "type": "static",
    "addresses": [{"address": "192.0.2.5/24", "gateway": "192.0.2.1"}, {"address": "fd77::5/64", "gateway": "fd77::1"}],
    "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.9.0.0/16", "gw": "192.0.2.9"}, {"dst": "::/0"}],
    "dns": {"nameservers": ["192.0.2.9"]},
}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "plain": {"master": "up0"},
    "addresses": {"master": "up0", "ipam": IPAM},
    "dns": {"master": "up0", "ipam": IPAM, "dns": {"search": ["a"]}},
    "default-route": {"ipam": IPAM},
    "private": {"master": "up0", "mode": "private"},
    "vepa": {"master": "up0", "mode": "vepa"},
    "passthru": {"master": "up0", "mode": "passthru"},
    "mtu": {"master": "up0", "mtu": 1400},
    "mac": {"master": "up0", "mac": "02:00:00:00:00:05"},
    "mac-of-the-runtime": {"master": "up0", "mac": "x", "runtimeConfig": {"mac": "0200.0000.0006"}},
    "queue": {"master": "up0", "bcqueuelen": 500},
    "in-the-container": {"master": "own0", "linkInContainer": True, "ipam": IPAM},
}
KINDS = ("info_kind", "info_data")
ROUTE = ("dst", "gateway", "dev", "scope", "protocol", "prefsrc", "metric", "type")
ADDRESS = ("local", "prefixlen", "scope", "broadcast")


@dataclass(frozen=True)
class Side:
    """One implementation, on a "host" of its own, whose interface up0 is part of the network."""

    name: str
    folder: Path
    bins: tuple[Path, ...]
    type: str
    host: Sandbox
    pod: Sandbox

    def runtime(self, version: str, keys: Mapping[str, Any], kind: str = "") -> CniRuntime:
        plugin = {"type": kind or self.type, **keys, "capabilities": {"mac": True}}
        document = {"cniVersion": version, "name": self.folder.parent.name, "plugins": [plugin]}
        return CniRuntime(document, list(self.bins), cache_dir=self.folder / "cache")

    def add(self, version: str, keys: Mapping[str, Any]) -> dict[str, Any]:
        with self.host.netns.entered():
            return dict(self.runtime(version, keys).add("c0", self.pod.path))

    def run(self, where: Sandbox, *words: str) -> str:
        command = ["nsenter", f"--net={where.path}", "ip", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def show(self, *words: str) -> Any:
        return json.loads(self.run(self.pod, "-j", "-d", *words) or "[]")


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with("macvlan") as made:
        yield made


@pytest.fixture
def sides(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[tuple[Side, Side]]:
    with ExitStack() as stack:

        def side(name: str, kind: str, *bins: Path) -> Side:
            host, pod = (stack.enter_context(Sandbox(short_path / f"{name}-{end}")) for end in ("host", "pod"))
            (short_path / name).mkdir()
            made = Side(name, short_path / name, bins, kind, host, pod)
            for where, link in ((host, "up"), (pod, "own")):
                made.run(where, "link", "add", f"{link}0", "type", "veth", "peer", "name", f"{link}1")
                made.run(where, "link", "set", f"{link}0", "up")
                made.run(where, "link", "set", f"{link}1", "up")
            made.run(host, "addr", "add", "192.0.2.1/24", "dev", "up0")
            made.run(host, "route", "add", "default", "via", "192.0.2.254")
            return made

        reference = consumer("cni")
        yield side("theirs", "macvlan", reference), side("ours", "nodeplug-macvlan", node.paths.cni_bin, reference)


def comparable(result: Any, side: Side, *, chosen: bool) -> Any:
    """A result without what differs by chance: the sandbox's path, and MACs that nobody chose."""
    document = json.loads(json.dumps(result).replace(str(side.pod.path), "SANDBOX"))
    if not document.get("dns"):
        document.pop("dns", None)
    for interface in document.get("interfaces", []):
        interface["mac"] = interface["mac"] if chosen else bool(interface["mac"])
    return document


def world(side: Side) -> Any:
    (link,) = side.show("addr", "show", "eth0")
    info = {key: link["linkinfo"][key] for key in KINDS}
    own = [[one.get(key) for key in ADDRESS] for one in link["addr_info"] if one["scope"] != "link"]
    routes = [
        str([one.get(key) for key in ROUTE])
        for family in ("-4", "-6")
        for one in side.show(family, "route", "show", "dev", "eth0")
        if not one["dst"].startswith("fe80")
    ]
    flags = {"UP", "LOWER_UP"}.intersection(link["flags"])
    with side.pod.netns.entered():
        names = ("ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify", "ipv6/conf/eth0/keep_addr_on_down")
        settings = [Path("/proc/sys/net", name).read_text().strip() for name in names]
    return link["mtu"], flags, info, sorted(own, key=str), sorted(routes), settings


@pytest.mark.parametrize("version", divided(VERSIONS, {"0.2.0", "0.4.0", "1.1.0"}, ()))
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], version: str) -> None:
    results = [comparable(side.add(version, VARIANTS["dns"]), side, chosen=False) for side in sides]
    assert results[1] == results[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_container_sees_the_same(sides: tuple[Side, Side], variant: str) -> None:
    chosen = "mac" in VARIANTS[variant]
    results = [comparable(side.add("1.1.0", VARIANTS[variant]), side, chosen=chosen) for side in sides]
    assert results[1] == results[0]
    assert world(sides[1]) == world(sides[0])


def test_each_checks_and_ends_what_the_other_attached(sides: tuple[Side, Side]) -> None:
    theirs, ours = sides
    for side, kind, other in ((theirs, "nodeplug-macvlan", ours), (ours, "macvlan", theirs)):
        side.add("1.1.0", VARIANTS["addresses"])
        plugin = {"type": kind, **VARIANTS["addresses"]}
        document = {"cniVersion": "1.1.0", "name": side.folder.parent.name, "plugins": [plugin]}
        moved = CniRuntime(document, list(other.bins), cache_dir=side.folder / "cache")
        with side.host.netns.entered():
            moved.check("c0")
            moved.delete("c0", side.pod.path)
        assert "eth0" not in side.pod.links()
