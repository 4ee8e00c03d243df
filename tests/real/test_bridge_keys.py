"""Keys of the reference's bridge beyond its first ones: what its current release does with each, and what ours does.

Both work in namespaces of their own with the same configuration, or on one host, where either ends what the other
began.
"""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode, folders

TYPES = {"reference": "bridge", "ours": "nodeplug-bridge"}
WHOSE = pytest.mark.parametrize("whose", TYPES)
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}


@dataclass(frozen=True)
class Host:
    """A host namespace with a folder of its own, where either program is called."""

    folder: Path
    bins: Mapping[str, Path]
    sandbox: Sandbox
    stack: ExitStack

    def runtime(self, whose: str, keys: Mapping[str, Any]) -> CniRuntime:
        plugin = {"type": TYPES[whose], "bridge": "br0", "ipMasqBackend": "nftables", **keys}
        if "ipam" in plugin:
            plugin["ipam"] = {**plugin["ipam"], "dataDir": str(self.folder / "addresses")}
        conflist = {"cniVersion": "1.0.0", "name": "keys", "plugins": [plugin]}
        return CniRuntime(conflist, [self.bins[whose]], cache_dir=self.folder / "cache")

    def add(self, whose: str, keys: Mapping[str, Any], container: str = "c0") -> tuple[Sandbox, dict[str, Any]]:
        pod = self.stack.enter_context(Sandbox(self.folder / f"pod-{container}"))
        with self.sandbox.netns.entered():
            return pod, dict(self.runtime(whose, keys).add(container, pod.path))

    def check(self, whose: str, keys: Mapping[str, Any], container: str = "c0") -> None:
        with self.sandbox.netns.entered():
            self.runtime(whose, keys).check(container)

    def delete(self, whose: str, keys: Mapping[str, Any], pod: Sandbox, container: str = "c0") -> None:
        with self.sandbox.netns.entered():
            self.runtime(whose, keys).delete(container, pod.path)

    def run(self, *command: str, where: Sandbox | None = None) -> str:
        command = ("nsenter", f"--net={(where or self.sandbox).path}", *command)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def rules(self) -> list[Any]:
        """What nft(8) has of tables of bridges, as JSON, without numbers that differ by chance."""
        found = json.loads(self.run("nft", "-j", "list", "ruleset", "bridge"))["nftables"][1:]
        return [{kind: {**one, "handle": 0} for kind, one in entry.items()} for entry in found]


@pytest.fixture(scope="module")
def bins(consumer: Callable[[str], Path]) -> Iterator[Mapping[str, Path]]:
    """Both programs; ours with one daemon for all tests."""
    reference, root = consumer("cni"), Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(root, "[plugins.bridge]\n[plugins.host-local]\n") as node:
            assert node.run("install").returncode == 0
            yield {"reference": reference, "ours": node.paths.cni_bin}
    finally:
        folders.remove(root)


@pytest.fixture
def make_host(short_path: Path, bins: Mapping[str, Path]) -> Iterator[Callable[[str], Host]]:
    for program, package in (("ip", "iproute2"), ("nft", "nftables"), ("strace", "strace")):
        if shutil.which(program) is None:
            pytest.skip(f"needs {program} of the package {package}")
    with ExitStack() as stack:

        def make(name: str) -> Host:
            folder = short_path / name
            folder.mkdir()
            return Host(folder, bins, stack.enter_context(Sandbox(folder / "host")), stack)

        yield make


@pytest.fixture
def host(make_host: Callable[[str], Host]) -> Host:
    return make_host("h")


@pytest.fixture
def twins(make_host: Callable[[str], Host]) -> dict[str, Host]:
    return {whose: make_host(whose) for whose in TYPES}


def nameless(document: Any) -> Any:
    """Replace names and addresses of interfaces, which are drawn."""
    text = re.sub(r"veth[0-9a-f]{8}", "VETH", json.dumps(document))
    return json.loads(re.sub(r"([0-9a-f]{2}:){5}[0-9a-f]{2}", "MAC", text))


# --- macspoofchk -----------------------------------------------------------------------------------------------------

SPOOF = {"macspoofchk": True, "isGateway": True, "ipMasq": True, "ipam": IPAM}


def test_the_rules_of_macspoofchk_are_those_of_the_reference(twins: dict[str, Host]) -> None:
    for whose, host in twins.items():
        for container in ("c0", "c1"):
            host.add(whose, SPOOF, container)
    theirs, ours = (nameless(host.rules()) for host in twins.values())
    assert ours == theirs
    assert len([entry for entry in ours if "rule" in entry]) == 8


@pytest.mark.parametrize(("begins", "ends"), [("reference", "ours"), ("ours", "reference"), ("ours", "ours")])
def test_either_ends_the_macspoofchk_of_the_other(host: Host, begins: str, ends: str) -> None:
    host.add(begins, SPOOF, "c1")
    others = host.rules()
    pod, _ = host.add(begins, SPOOF)
    host.check("ours", SPOOF)
    host.delete(ends, SPOOF, pod)
    assert host.rules() == others


def test_a_check_of_a_container_of_the_reference_notices_lost_rules(host: Host) -> None:
    host.add("reference", SPOOF)
    host.run("nft", "flush", "chain", "bridge", "nat", "PREROUTING")
    with pytest.raises(CniError, match=r"frames from veth[0-9a-f]{8} are not checked"):
        host.check("ours", SPOOF)


@WHOSE
def test_a_collection_leaves_the_macspoofchk_of_who_is_there(host: Host, whose: str) -> None:
    host.add(whose, SPOOF)
    before = host.rules()
    runtime = host.runtime("ours", SPOOF)
    runtime.conflist = {**runtime.conflist, "cniVersion": "1.1.0"}
    with host.sandbox.netns.entered():
        runtime.gc([("c0", "eth0")])
    assert host.rules() == before


# --- the port and the container's interface --------------------------------------------------------------------------

PORTS: Mapping[str, dict[str, Any]] = {
    "isolated": {"portIsolation": True},
    "not-isolated": {"portIsolation": False},
    "isolated-hairpin": {"portIsolation": True, "hairpinMode": True, "isGateway": True, "ipam": IPAM},
    "down": {"disableContainerInterface": True},
    "down-isolated": {"disableContainerInterface": True, "portIsolation": True, "mtu": 1400},
    "dad": {"enabledad": True, "isGateway": True, "ipam": IPAM},
    "no-dad": {"isGateway": True, "ipam": IPAM},
    "spoof-down": {"disableContainerInterface": True, "macspoofchk": True},
}


def seen(host: Host, pod: Sandbox, result: Mapping[str, Any]) -> dict[str, Any]:
    """What a key could change: the result, the port's modes, the interface in the container, and its settings."""
    port = json.loads(host.run("ip", "-d", "-j", "link", "show", "master", "br0"))[0]
    inside = json.loads(host.run("ip", "-d", "-j", "addr", "show", "eth0", where=pod))[0]
    settings = ("accept_dad", "enhanced_dad", "keep_addr_on_down", "disable_ipv6")
    paths = [f"/proc/sys/net/ipv6/conf/eth0/{name}" for name in settings]
    addresses = [one for one in inside["addr_info"] if one["scope"] == "global"]
    return {
        "interfaces": [{**one, "sandbox": bool(one.get("sandbox"))} for one in result["interfaces"]],
        "ips": result.get("ips"),
        "port": (port["linkinfo"]["info_slave_data"]["isolated"], port["linkinfo"]["info_slave_data"]["hairpin"]),
        "up": ("UP" in port["flags"], "UP" in inside["flags"], port["mtu"], inside["mtu"]),
        "addresses": sorted((one["local"], one.get("tentative", False)) for one in addresses),
        "settings": host.run("cat", *paths, where=pod).split(),
    }


@pytest.mark.parametrize("keys", PORTS)
def test_a_port_and_an_interface_are_as_the_reference_makes_them(twins: dict[str, Host], keys: str) -> None:
    found = {}
    for whose, host in twins.items():
        pod, result = host.add(whose, PORTS[keys])
        host.check("ours", PORTS[keys])
        found[whose] = nameless(seen(host, pod, result))
        host.delete(whose, PORTS[keys], pod)
        assert pod.links() == ("lo",)
    assert without_mtu(found["ours"]) == without_mtu(found["reference"])


def without_mtu(document: dict[str, Any]) -> dict[str, Any]:
    """Ours tells the MTU of interfaces, which the reference's bridge leaves out."""
    plain = [{key: value for key, value in one.items() if key != "mtu"} for one in document["interfaces"]]
    return {**document, "interfaces": plain}


def test_an_address_that_a_neighbour_has_is_refused_in_the_words_of_the_reference(twins: dict[str, Host]) -> None:
    refusals = []
    for whose, host in twins.items():
        keys = {"enabledad": True, "isGateway": True, "ipam": IPAM}
        neighbour, _ = host.add(whose, keys, "c0")
        host.run("ip", "addr", "add", "fd77::3/64", "dev", "eth0", "nodad", where=neighbour)
        with pytest.raises(CniError, match="DADFAILED") as refusal:
            host.add(whose, keys, "c1")
        refusals.append(str(refusal.value).partition("failed (add): ")[2])
    assert refusals[1].startswith(f"{refusals[0]}; a neighbour has it")


@pytest.mark.parametrize("backend", ["iptables", "nftables"])
def test_either_backend_of_masquerading_hides_a_container_with_both_programs(
    twins: dict[str, Host], backend: str
) -> None:
    """Somebody outside sees the host's address; the port is another host's, connected by a pair."""
    for whose, host in twins.items():
        keys = {"isDefaultGateway": True, "ipMasq": True, "ipMasqBackend": backend, "ipam": IPAM}
        pod, _ = host.add(whose, keys)
        outside = host.stack.enter_context(Sandbox(host.folder / "outside"))
        host.run("ip", "link", "add", "up0", "type", "veth", "peer", "name", "down0", "netns", str(outside.path))
        host.run("ip", "addr", "add", "192.0.2.1/24", "dev", "up0")
        host.run("ip", "link", "set", "up0", "up")
        host.run("ip", "addr", "add", "192.0.2.2/24", "dev", "down0", where=outside)
        host.run("ip", "link", "set", "down0", "up", where=outside)
        host.run("ping", "-c", "1", "-W", "3", "192.0.2.2", where=pod)  # there is no way back to 10.77.0.0/24
        host.delete(whose, keys, pod)
        assert "10.77.0.2" not in host.run("nft", "list", "ruleset")
