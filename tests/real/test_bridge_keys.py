"""Keys of the reference's bridge beyond its first ones: what its current release does with each, and what ours does.

Both work in namespaces of their own with the same configuration, or on one host, where either ends what the other
began.
"""

import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug.testing import CniError, CniRuntime, Sandbox, ScratchNode, folders
from nodeplug.testing.waiting import until
from nodeplug_net.bridge.vlan import add_vlans, delete_vlans

TYPES = {"reference": "bridge", "ours": "nodeplug-bridge"}
WHOSE = pytest.mark.parametrize("whose", TYPES)
IPAM = {"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd77::/64"}]]}


@dataclass(frozen=True)
class Host:
    """A host namespace with a folder of its own, where either program is called."""

    folder: Path
    bins: Mapping[str, Path]
    daemon: ScratchNode
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
def daemon() -> Iterator[ScratchNode]:
    """One for all tests."""
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(root, "[plugins.bridge]\n[plugins.host-local]\n") as node:
            assert node.run("install").returncode == 0
            yield node
    finally:
        folders.remove(root)


@pytest.fixture
def make_host(
    short_path: Path, daemon: ScratchNode, consumer: Callable[[str], Path]
) -> Iterator[Callable[[str], Host]]:
    bins = {"reference": consumer("cni"), "ours": daemon.paths.cni_bin}
    need("bridge", "ip", "nft", "strace")
    with ExitStack() as stack:

        def make(name: str) -> Host:
            folder = short_path / name
            folder.mkdir()
            return Host(folder, bins, daemon, stack.enter_context(Sandbox(folder / "host")), stack)

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
        need("ping")
        host.run("ping", "-c", "1", "-W", "3", "192.0.2.2", where=pod)  # there is no way back to 10.77.0.0/24
        host.delete(whose, keys, pod)
        assert "10.77.0.2" not in host.run("nft", "list", "ruleset")


# --- VLANs -----------------------------------------------------------------------------------------------------------
#
# Where the kernel's bridges filter no VLANs, nobody can see what comes of a message, and a bridge that filters cannot
# be made. So what is compared is the messages, on a bridge that is there: strace(1) shows those of the reference, up to
# the first that the kernel refuses, those of ours, and those of bridge(8), which knows the short forms that ours uses.

VLANS: Mapping[str, dict[str, Any]] = {
    "access": {"vlan": 100},
    "access-preserving": {"vlan": 100, "preserveDefaultVlan": True},
    "trunk": {"vlanTrunk": [{"id": 101}]},
    "trunk-preserving": {"vlanTrunk": [{"id": 101}], "preserveDefaultVlan": True},
}
ABOUT_PORTS = 7  # AF_BRIDGE
NEWLINK = 16


def dumped(text: str) -> list[bytes]:
    """Netlink messages out of the hexadecimal dumps of strace(1); one dump may hold several."""
    found: list[bytes] = []
    data = b""
    for line in [*text.splitlines(), ""]:
        match = re.match(r" \| ([0-9a-f]{5})  ((?:[0-9a-f]{2} +){1,16})", line)
        if match:
            data += bytes.fromhex(match[2])
        elif data:
            while len(data) >= 16 and 16 <= (length := int.from_bytes(data[:4], "little")) <= len(data):
                found.append(data[:length])
                data = data[(length + 3) & ~3 :]
            data = b""
    return found


def told(messages: list[bytes]) -> list[tuple[int, bytes]]:
    """What is asked about VLANs of ports: the type of each message, and what follows the index of the interface."""
    kinds = ((int.from_bytes(one[4:6], "little"), one) for one in messages if one[16] == ABOUT_PORTS)
    return [(kind, one[24:]) for kind, one in kinds if int.from_bytes(one[34:36], "little") in {26, 29}]


def traced(host: Host, output: Path, *command: str) -> list[bytes]:
    strace = ["strace", "-f", "-qq", "-o", str(output), "-e", "trace=sendto,sendmsg", "-e", "write=all"]
    words = ["nsenter", f"--net={host.sandbox.path}", *strace, *command]
    subprocess.run(words, capture_output=True, check=False)
    return dumped(output.read_text())


def refused(host: Host, whose: str, keys: Mapping[str, Any], *, bridge: bool = True) -> tuple[str, list[bytes]]:
    """The refusal of an ADD, and what was sent: the calling program or, for ours, the daemon is traced."""
    if bridge:
        host.run("ip", "link", "add", "br0", "type", "bridge")
    output = host.folder / "trace"
    wrapped = host.folder / "bin"
    wrapped.mkdir()
    trace = f"strace -f -qq -o {output} -e trace=sendto,sendmsg -e write=all"
    if whose == "reference":
        script = wrapped / "bridge"
        script.write_text(f'#!/bin/sh\nexec {trace} {host.bins[whose] / "bridge"} "$@"\n')
        script.chmod(0o755)
        runtime = host.runtime(whose, keys)
        runtime = CniRuntime(
            runtime.conflist, [wrapped, host.bins[whose]], env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
        )
        pod = host.stack.enter_context(Sandbox(host.folder / "pod"))
        with host.sandbox.netns.entered(), pytest.raises(CniError) as refusal:
            runtime.add("c0", pod.path)
    else:
        words = [*trace.split(), "-p", str(host.daemon.pid)]
        with subprocess.Popen(words) as tracer:
            until(lambda: "TracerPid:\t0\n" not in Path(f"/proc/{host.daemon.pid}/status").read_text())
            with pytest.raises(CniError) as refusal:
                host.add(whose, keys)
            tracer.terminate()
    return str(refusal.value), dumped(output.read_text())


def filters_vlans(host: Host) -> bool:
    host.run("ip", "link", "add", "probe0", "type", "bridge")
    shown = json.loads(host.run("ip", "-d", "-j", "link", "show", "probe0"))[0]["linkinfo"]["info_data"]
    host.run("ip", "link", "delete", "probe0")
    return "vlan_default_pvid" in shown


@pytest.mark.parametrize("keys", VLANS)
def test_a_kernel_without_vlans_is_asked_the_same_and_refuses_in_the_same_words(
    twins: dict[str, Host], keys: str
) -> None:
    if filters_vlans(twins["ours"]):
        pytest.skip("needs a kernel whose bridges filter no VLANs")
    (theirs, sent), (ours, sent_by_us) = (refused(host, whose, VLANS[keys]) for whose, host in twins.items())
    pattern = r'failed to setup vlan tag on interface "veth[0-9a-f]{8}": operation not supported'
    assert [bool(re.search(pattern, text)) for text in (theirs, ours)] == [True, True]
    expected = told(sent)
    assert len(expected) == (1 if "preserveDefaultVlan" in VLANS[keys] else 2)
    found = told(sent_by_us)
    if "vlanTrunk" in VLANS[keys]:  # ours says at once what the reference would say next: the native VLAN
        native = bytes.fromhex("0800020006000100")
        assert found[-1][1].endswith(native)
        found[-1] = (found[-1][0], shortened(found[-1][1], len(native)))
    assert found == expected


def shortened(told: bytes, by: int) -> bytes:
    """Leave out the last attributes of IFLA_AF_SPEC."""
    length = int.from_bytes(told[8:10], "little") - by
    return told[:8] + length.to_bytes(2, "little") + told[10:-by]


@pytest.mark.parametrize("keys", ["access", "trunk"])
def test_a_refused_vlan_leaves_nothing_with_ours(twins: dict[str, Host], keys: str) -> None:
    host = twins["ours"]
    if filters_vlans(host):
        pytest.skip("needs a kernel whose bridges filter no VLANs")
    host.run("ip", "link", "add", "br0", "type", "bridge")
    with pytest.raises(CniError, match="CONFIG_BRIDGE_VLAN_FILTERING"):
        host.add("ours", {**VLANS[keys], "macspoofchk": True, "isGateway": True, "ipam": IPAM})
    assert [name for name in host.sandbox.links() if name.startswith("veth")] == []
    assert [path for path in (host.folder / "addresses/keys").iterdir() if path.name.startswith(("10.", "fd"))] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["add", "dev", "port0", "vid", "100", "pvid", "untagged"], add_vlans(0, [(100, 6)])),
        (["add", "dev", "port0", "vid", "200-210"], add_vlans(0, [(number, 0) for number in range(200, 211)])),
        (["del", "dev", "port0", "vid", "1"], delete_vlans(0, [1])),
    ],
    ids=["access", "range", "delete"],
)
def test_the_messages_are_those_of_iproute2(host: Host, words: list[str], message: bytearray) -> None:
    host.run("ip", "link", "add", "br9", "type", "bridge")
    host.run("ip", "link", "add", "port0", "master", "br9", "type", "veth", "peer", "name", "port1")
    sent = told(traced(host, host.folder / "trace", "bridge", "vlan", *words))
    assert [(kind, infos(data)) for kind, data in sent] == [
        (int.from_bytes(message[4:6], "little"), infos(bytes(message[24:])))
    ]


def infos(told: bytes) -> list[tuple[int, int]]:
    """Flags and identifier of each IFLA_BRIDGE_VLAN_INFO in IFLA_AF_SPEC; bridge(8) leaves the master out."""
    return [
        (int.from_bytes(told[start + 4 : start + 6], "little"), int.from_bytes(told[start + 6 : start + 8], "little"))
        for start in range(12, len(told), 4)
        if told[start : start + 4] == b"\x08\x00\x02\x00"
    ]


def test_a_bridge_that_filters_is_asked_for_and_refused_in_the_same_words(twins: dict[str, Host]) -> None:
    if filters_vlans(twins["ours"]):
        pytest.skip("needs a kernel whose bridges filter no VLANs")
    for whose, host in twins.items():
        text, sent = refused(host, whose, VLANS["access"], bridge=False)
        assert 'failed to create bridge "br0": could not add "br0": operation not supported' in text
        created = [one for one in sent if int.from_bytes(one[4:6], "little") == NEWLINK and b"bridge\0" in one]
        assert any(bytes.fromhex("0500070001000000") in one for one in created)  # IFLA_BR_VLAN_FILTERING
        assert "br0" not in host.sandbox.links()
