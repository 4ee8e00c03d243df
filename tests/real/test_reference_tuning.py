"""tuning of the reference and ours, side by side: the same configuration must come to the same thing."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nodeplug.testing import Sandbox, ScratchNode

VERSIONS = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
ARP = "net.ipv4.conf.IFNAME.arp_filter"
MAC = "02:00:00:00:00:05"
ALL = {"mac": MAC, "promisc": True, "mtu": 1300, "allmulti": True, "txQLen": 77, "sysctl": {ARP: "1"}}
VARIANTS: Mapping[str, tuple[dict[str, Any], str]] = {
    "nothing": ({}, ""),
    "all": (ALL, ""),
    "sysctls": ({"sysctl": {ARP: "1", "net/core/somaxconn": "512", "net.ipv4.ip_local_port_range": "1024 65000"}}, ""),
    "capitals": ({"MTU": 1300, "TXQLEN": 0, "Allmulti": True}, ""),
    "arguments": ({"mac": "x"}, f"IgnoreUnknown=1;K8S_POD_NAME=p;MAC={MAC}"),
    "runtime": ({"mac": "x", "runtimeConfig": {"mac": MAC}}, "MAC=x"),
    "args": ({"sysctl": {ARP: "0"}, "mtu": 1, "args": {"cni": {"sysctl": {ARP: "1"}, "mtu": 1300, "mac": MAC}}}, ""),
    "off": ({"promisc": False, "allmulti": False, "txQLen": 5}, ""),
}
WRONG: Mapping[str, tuple[dict[str, Any], str]] = {
    "not-of-the-network": ({"sysctl": {"kernel.hostname": "x"}}, ""),
    "no-such-sysctl": ({"sysctl": {"net.ipv4.nope": "1"}}, ""),
    "no-such-value": ({"sysctl": {ARP: "x"}}, ""),
    "mac": ({"mac": "x"}, ""),
    "short-mac": ({"mac": "02:00:00:00:00"}, ""),
    "mtu": ({"mtu": 1}, ""),
    "arguments": ({}, "FOO=1"),
    "no-pair": ({}, "none"),
}


@dataclass(frozen=True)
class Side:
    """One implementation, and a container of its own."""

    program: Path
    folder: Path
    pod: Sandbox

    def call(
        self, verb: str, version: str, keys: Mapping[str, Any], args: str = "", program: Path | None = None
    ) -> Any:
        """Return the exit status, and the result or the code and the sentence."""
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": str(self.pod.path),
            "CNI_IFNAME": "eth0",
            "CNI_ARGS": args,
            "CNI_PATH": "/nowhere",
        }
        config = {"cniVersion": version, "name": "net", "type": "tuning", "dataDir": str(self.folder), **keys}
        if verb in {"ADD", "CHECK"} and "prevResult" not in keys:
            config["prevResult"] = previous(version)
        stdin = json.dumps({key: value for key, value in config.items() if value is not None}).encode()
        command = [program or self.program]
        done = subprocess.run(command, env=env, input=stdin, capture_output=True, check=False)
        document = json.loads(done.stdout or "{}")
        if done.returncode:
            return done.returncode, document["msg"]
        if not document.get("dns"):
            document.pop("dns", None)
        return done.returncode, document

    def show(self) -> Any:
        """What the container's interface is, as ip(8) and the kernel say."""
        command = ["nsenter", f"--net={self.pod.path}", "ip", "-j", "-d", "link", "show", "eth0"]
        (link,) = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        flags = {"PROMISC", "ALLMULTI"}.intersection(link["flags"])
        with self.pod.netns.entered():
            names = ("ipv4/conf/eth0/arp_filter", "core/somaxconn", "ipv4/ip_local_port_range")
            sysctls = [Path("/proc/sys/net", name).read_text() for name in names]
        return link["address"], link["mtu"], link.get("txqlen"), flags, sysctls


def previous(version: str) -> dict[str, Any]:
    if version in {"0.1.0", "0.2.0"}:
        return {"cniVersion": version, "ip4": {"ip": "192.0.2.5/24", "gateway": "192.0.2.1"}}
    family = {} if version.startswith("1.") else {"version": "4"}
    return {
        "cniVersion": version,
        "interfaces": [{"name": "br0"}, {"name": "eth0", "mac": "02:00:00:00:00:01", "sandbox": "/run/netns/x"}],
        "ips": [{**family, "address": "192.0.2.5/24", "gateway": "192.0.2.1", "interface": 1}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["192.0.2.9"]},
    }


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has containers and folders of its own."""
    with TemporaryDirectory(prefix="np-", dir="/tmp") as root, ScratchNode(Path(root), "[plugins.tuning]\n") as made:
        assert made.run("install").returncode == 0
        yield made


@pytest.fixture
def sides(short_path: Path, consumer: Callable[[str], Path], node: ScratchNode) -> Iterator[tuple[Side, Side]]:
    programs = consumer("cni") / "tuning", node.paths.cni_bin / "nodeplug-tuning"
    with Sandbox(short_path / "theirs-pod") as one, Sandbox(short_path / "ours-pod") as other:
        for pod in (one, other):
            link = [
                "ip",
                "link",
                "add",
                "eth0",
                "address",
                "02:00:00:00:00:01",
                "type",
                "veth",
                "peer",
                "name",
                "peer0",
            ]
            subprocess.run(["nsenter", f"--net={pod.path}", *link], check=True)
        yield Side(programs[0], short_path / "theirs", one), Side(programs[1], short_path / "ours", other)


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], version: str) -> None:
    theirs, ours = (side.call("ADD", version, ALL) for side in sides)
    assert ours == theirs


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_container_sees_the_same_and_has_the_same_back(sides: tuple[Side, Side], variant: str) -> None:
    keys, args = VARIANTS[variant]
    theirs, ours = (side.call("ADD", "1.0.0", keys, args) for side in sides)
    assert ours == theirs
    assert ours[0] == 0
    assert sides[1].show() == sides[0].show()
    for side in sides:
        side.call("DEL", "1.0.0", keys, args)
    assert sides[1].show() == sides[0].show()
    assert [list(side.folder.glob("*")) for side in sides] == [[], []]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused_is_refused_in_the_same_words(sides: tuple[Side, Side], wrong: str) -> None:
    keys, args = WRONG[wrong]
    theirs, ours = (side.call("ADD", "1.0.0", keys, args) for side in sides)
    assert ours == theirs
    assert ours[0] == 1


@pytest.mark.parametrize(
    "keys",
    [ALL, {}, {"mac": MAC}, {"mtu": 1300}, {"promisc": True}, {"sysctl": {ARP: "1"}}, {"sysctl": {"net.ipv4.x": "1"}}],
    ids=str,
)
@pytest.mark.parametrize("tuned", [True, False])
def test_a_check_comes_to_the_same(sides: tuple[Side, Side], keys: dict[str, Any], tuned: bool) -> None:
    if tuned:
        for side in sides:
            assert side.call("ADD", "1.0.0", ALL)[0] == 0
    theirs, ours = (side.call("CHECK", "1.0.0", keys) for side in sides)
    assert ours[0] == theirs[0]
    if ours[0]:
        assert ours[1].startswith(theirs[1])  # ours goes on with other differences


def test_each_ends_what_the_other_changed(sides: tuple[Side, Side]) -> None:
    theirs, ours = sides
    for side, other in ((theirs, ours.program), (ours, theirs.program)):
        was = side.show()[:4]
        assert side.call("ADD", "1.0.0", ALL)[0] == 0
        assert side.show()[:4] != was
        assert side.call("DEL", "1.0.0", ALL, program=other) == (0, {})
        assert side.show()[:4] == was
        assert list(side.folder.glob("*")) == []


def test_without_a_previous_result_both_say_the_same(sides: tuple[Side, Side]) -> None:
    theirs, ours = (side.call("ADD", "1.0.0", {"prevResult": None}) for side in sides)
    assert ours == theirs == (1, "Required prevResult missing")
