"""The reference plugins and ours, side by side: the same configuration must come to the same thing.

`old` are Debian's, which stop at cniVersion 1.0.0; `current` are today's.
"""

import json
import shutil
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need
from tests.real.twins import node_with

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode

DEBIAN = Path("/usr/lib/cni")
VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
V4 = [[{"subnet": "10.77.0.0/24"}]]
DUAL = [*V4, [{"subnet": "fd77::/64"}]]
VARIANTS: Mapping[str, tuple[dict[str, Any], list[Any]]] = {
    "plain": ({}, V4),
    "gateway": ({"isGateway": True}, V4),
    "default-gateway": ({"isDefaultGateway": True}, V4),
    "mtu": ({"mtu": 1400, "isGateway": True}, V4),
    "dual-stack": ({"isDefaultGateway": True}, DUAL),
    "hairpin": ({"hairpinMode": True, "isGateway": True}, V4),
}


@dataclass(frozen=True)
class Side:
    """One implementation, on a "host" of its own."""

    name: str
    folder: Path
    bin: Path
    type: str
    host: Sandbox
    pod: Sandbox

    def runtime(self, version: str, keys: Mapping[str, Any], ranges: list[Any], **ipam: Any) -> CniRuntime:
        data = str(self.folder / f"{self.name}-addresses")
        plugin = {"type": self.type, "bridge": "br0", **keys}
        plugin["ipam"] = {"type": "host-local", "dataDir": data, "ranges": ranges, **ipam}
        return CniRuntime({"cniVersion": version, "name": "twin", "plugins": [plugin]}, [self.bin])

    def add(self, runtime: CniRuntime, container: str = "c0") -> dict[str, Any]:
        with self.host.netns.entered():
            return dict(runtime.add(container, self.pod.path))

    def show(self, *arguments: str, where: Sandbox | None = None) -> Any:
        command = ["nsenter", f"--net={(where or self.pod).path}", "ip", "-j", *arguments]
        return json.loads(subprocess.run(command, capture_output=True, check=True).stdout or "[]")


@pytest.fixture(scope="session")
def reference(generation: str, consumer: Callable[[str], Path]) -> Path:
    """The folder of the reference plugins."""
    if generation == "current":
        return consumer("cni")
    if not (DEBIAN / "bridge").exists():
        pytest.skip("containernetworking-plugins is missing: apt-get install containernetworking-plugins")
    return DEBIAN


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with("bridge", "host-local") as made:
        yield made


@pytest.fixture
def sides(short_path: Path, node: ScratchNode, reference: Path) -> Iterator[tuple[Side, Side]]:
    need("ip")
    with ExitStack() as stack:

        def side(name: str, folder: Path, kind: str) -> Side:
            host, pod = (stack.enter_context(Sandbox(short_path / f"{name}-{end}")) for end in ("host", "pod"))
            return Side(name, short_path, folder, kind, host, pod)

        yield (
            side("reference", reference, "bridge"),
            side("ours", node.paths.cni_bin, "nodeplug-bridge"),
        )


def comparable(result: Any, side: Side) -> Any:
    """A result without what differs by chance: MACs, the host veth's name, the sandbox's path."""
    text = json.dumps(result).replace(str(side.pod.path), "SANDBOX")
    document = json.loads(text)
    if not document.get("dns"):  # Debian's plugins write an empty object, newer ones nothing
        document.pop("dns", None)
    for interface in document.get("interfaces", []):
        interface["mac"] = interface.get("mac") and "MAC"
        interface.pop("mtu", None)  # Debian's plugins are older than the key
        if interface["name"].startswith("veth"):
            interface["name"] = "VETH"
    return document


def addresses(side: Side) -> list[tuple[Any, ...]]:
    shown = side.show("addr", "show", "eth0")
    return sorted(
        (entry["family"], entry["local"], entry["prefixlen"], entry["scope"])
        for link in shown
        for entry in link["addr_info"]
        if entry["scope"] != "link"
    )


def routes(side: Side, family: str) -> list[tuple[Any, ...]]:
    shown = side.show(family, "route", "show", "dev", "eth0")
    return sorted((entry["dst"], entry.get("gateway")) for entry in shown if not entry["dst"].startswith("fe80"))


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], version: str, generation: str) -> None:
    if (generation, version) == ("old", "1.1.0"):
        with pytest.raises(CniError, match="incompatible CNI versions"):
            sides[0].add(sides[0].runtime(version, {}, V4))
        return
    results = [comparable(side.add(side.runtime(version, {"isDefaultGateway": True}, V4)), side) for side in sides]
    assert results[1] == results[0]


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_container_sees_the_same(sides: tuple[Side, Side], variant: str) -> None:
    keys, ranges = VARIANTS[variant]
    results = [comparable(side.add(side.runtime("1.0.0", keys, ranges)), side) for side in sides]
    assert results[1] == results[0]
    assert addresses(sides[1]) == addresses(sides[0])
    for family in ("-4", "-6"):
        assert routes(sides[1], family) == routes(sides[0], family)
    assert len({side.show("link", "show", "eth0")[0]["mtu"] for side in sides}) == 1


def test_the_bridge_has_the_same_address(sides: tuple[Side, Side]) -> None:
    found = []
    for side in sides:
        side.add(side.runtime("1.0.0", {"isGateway": True}, DUAL))
        shown = side.show("addr", "show", "br0", where=side.host)
        found.append(sorted(entry["local"] for entry in shown[0]["addr_info"] if entry["scope"] == "global"))
    assert found[1] == found[0]


def test_the_address_folder_has_the_same_files_and_contents(sides: tuple[Side, Side]) -> None:
    """The lock, which the reference opens and never reads, also holds our note of the boot."""
    found = []
    for side in sides:
        side.add(side.runtime("1.0.0", {"isGateway": True}, DUAL))
        folder = side.folder / f"{side.name}-addresses" / "twin"
        found.append({path.name: path.read_bytes() * (path.name != "lock") for path in folder.iterdir()})
    assert found[1] == found[0]


@pytest.mark.parametrize("generation", ["current"], indirect=True)  # the old ones drop what IPAM says in any case
@pytest.mark.parametrize(
    "dns", [None, {}, {"nameservers": []}, {"search": []}, {"options": []}, {"domain": ""}, {"domain": "a"}], ids=str
)
def test_dns_of_a_network_takes_the_place_of_ipams_alike(
    sides: tuple[Side, Side], tmp_path: Path, dns: dict[str, Any] | None
) -> None:
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.9\nsearch example\n")
    results = []
    for side in sides:
        runtime = side.runtime("1.0.0", {"dns": dns}, V4, resolvConf=str(tmp_path / "resolv.conf"))
        results.append(comparable(side.add(runtime), side))
    assert results[0] == results[1]


def test_an_address_reserved_by_the_reference_is_not_given_by_ours(sides: tuple[Side, Side]) -> None:
    reference, ours = sides
    first = reference.add(reference.runtime("1.0.0", {}, V4))
    shared = ours.runtime("1.0.0", {}, V4, dataDir=str(reference.folder / "reference-addresses"))
    second = ours.add(shared, "c1")
    assert first["ips"][0]["address"] != second["ips"][0]["address"]


def test_ours_takes_down_what_the_reference_reserved(sides: tuple[Side, Side]) -> None:
    reference, ours = sides
    reference.add(reference.runtime("1.0.0", {}, V4))
    folder = reference.folder / "reference-addresses"
    shared = ours.runtime("1.0.0", {}, V4, dataDir=str(folder))
    with ours.host.netns.entered():
        shared.delete("c0")
    assert [path.name for path in (folder / "twin").iterdir() if path.name[0].isdigit()] == []


@pytest.mark.parametrize(
    "keys",
    [{"hairpinMode": True, "promiscMode": True}, {"vlan": 5000}],
    ids=["hairpin-and-promisc", "vlan-out-of-range"],
)
def test_both_refuse_the_same_configurations(sides: tuple[Side, Side], keys: dict[str, Any]) -> None:
    for side in sides:
        with pytest.raises(CniError):
            side.add(side.runtime("1.0.0", keys, V4))


def test_a_reference_plugin_can_be_chained_behind_ours(sides: tuple[Side, Side]) -> None:
    reference, ours = sides
    runtime = ours.runtime("1.0.0", {"isGateway": True}, V4)
    plugins = [*runtime.conflist["plugins"], {"type": "tuning", "mtu": 1300}]
    chained = CniRuntime({**runtime.conflist, "plugins": plugins}, [ours.bin, reference.bin])
    ours.add(chained)
    assert ours.show("link", "show", "eth0")[0]["mtu"] == 1300
    with ours.host.netns.entered():
        chained.check("c0")
        chained.delete("c0", ours.pod.path)
    assert ours.pod.links() == ("lo",)


def test_the_reference_ipam_serves_our_bridge(sides: tuple[Side, Side], tmp_path: Path) -> None:
    reference, ours = sides
    shutil.copy(reference.bin / "static", tmp_path / "their-static")  # ours reads the addresses of "static" itself
    plugin = {
        "type": "nodeplug-bridge",
        "bridge": "br0",
        "ipam": {"type": "their-static", "addresses": [{"address": "10.99.0.5/24", "gateway": "10.99.0.1"}]},
    }
    runtime = CniRuntime({"cniVersion": "1.0.0", "name": "static", "plugins": [plugin]}, [ours.bin, tmp_path])
    result = ours.add(runtime)
    assert [ip["address"] for ip in result["ips"]] == ["10.99.0.5/24"]
    with ours.host.netns.entered():
        runtime.check("c0")
        runtime.delete("c0", ours.pod.path)
