"""bandwidth of the reference and ours, side by side: the same configuration comes to the same qdiscs and filters."""

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nodeplug.testing import Sandbox, ScratchNode

pytestmark = pytest.mark.programs("ping", "tc")

VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
INGRESS: dict[str, Any] = {"ingressRate": 8_000_000, "ingressBurst": 400_000}
EGRESS: dict[str, Any] = {"egressRate": 16_000_000, "egressBurst": 400_000}
BOTH = {**INGRESS, **EGRESS}
LARGEST = {"ingressRate": 10**9, "ingressBurst": (1 << 32) - 1, "egressRate": 10**9, "egressBurst": (1 << 32) - 1}
VARIANTS: Mapping[str, dict[str, Any]] = {
    "nothing": {},
    "zeros": dict.fromkeys(BOTH, 0),
    "ingress": INGRESS,
    "egress": EGRESS,
    "both": BOTH,
    "capitals": {"INGRESSRATE": 8_000_000, "IngressBurst": 400_000},
    "runtime": {"runtimeConfig": {"bandwidth": BOTH}},
    "network-before-runtime": {**INGRESS, "runtimeConfig": {"bandwidth": EGRESS}},
    "fast": {"ingressRate": 80 * 10**9, "ingressBurst": 4 * 10**9},
    "largest-burst": LARGEST,
}
WRONG: Mapping[str, dict[str, Any]] = {
    "rate-alone": {"ingressRate": 8},
    "burst-alone": {"egressBurst": 8},
    "burst": {"ingressRate": 8, "ingressBurst": 8 << 32},
    "no-result": {**BOTH, "prevResult": None},
    "no-interfaces": {**BOTH, "prevResult": {"cniVersion": "1.0.0"}},
    "another-pair": {**BOTH, "prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "other"}]}},
}
CHANGED: Mapping[str, dict[str, Any]] = {
    "rate": {**INGRESS, "ingressRate": 16_000_000},
    "burst": {**INGRESS, "ingressBurst": 800_000},
    "egress": BOTH,
    "nothing": {},
    "same": INGRESS,
}


@dataclass(frozen=True)
class Side:
    """One implementation, on a "host" of its own with one container."""

    program: Path
    host: Sandbox
    pod: Sandbox

    def call(self, verb: str, keys: Mapping[str, Any], version: str = "1.0.0", program: Path | None = None) -> Any:
        """Return the exit status, and the result or the sentence."""
        env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_NETNS": str(self.pod.path), "CNI_IFNAME": "eth0"}
        config = {"cniVersion": version, "name": "net", "type": "bandwidth", **keys}
        if verb != "DEL" and "prevResult" not in keys:
            config["prevResult"] = previous(version)
        stdin = json.dumps({key: value for key, value in config.items() if value is not None}).encode()
        command = ["nsenter", f"--net={self.host.path}", str(program or self.program)]
        done = subprocess.run(
            command, env={**env, "CNI_PATH": "/nowhere"}, input=stdin, capture_output=True, check=False
        )
        document = json.loads(done.stdout or "{}")
        if done.returncode:
            return done.returncode, document["msg"]
        for interface in document.get("interfaces", []):
            interface.pop("mac", None)
        if not document.get("dns"):
            document.pop("dns", None)
        return 0, document

    def run(self, *words: str) -> str:
        command = ["nsenter", f"--net={self.host.path}", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def shaped(self) -> dict[str, Any]:
        """What tc(8) says of every link: qdiscs at roots, and filters of what comes in."""
        names = [link["ifname"] for link in json.loads(self.run("ip", "-j", "link", "show"))]
        found = {}
        for name in sorted(names):
            qdiscs = json.loads(self.run("/usr/sbin/tc", "-j", "qdisc", "show", "dev", name))
            # The queue before a bucket is ours alone: it bounds what the burst would let wait.
            limits = [(one["kind"], one.get("root"), one["options"]) for one in qdiscs if one["kind"] != "bfifo"]
            filters = self.run("/usr/sbin/tc", "filter", "show", "dev", name, "ingress")
            # The reference has a second action, which no packet reaches: the first one steals it.
            filters = filters.partition("\taction order 2")[0].strip()
            found[name] = limits, filters
        return found


def previous(version: str) -> dict[str, Any]:
    family = {} if version.startswith("1.") else {"version": "4"}
    return {
        "cniVersion": version,
        "interfaces": [{"name": "br0"}, {"name": "host0"}, {"name": "eth0", "sandbox": "/run/netns/x"}],
        "ips": [{**family, "address": "192.0.2.5/24", "gateway": "192.0.2.1", "interface": 2}],
        "routes": [{"dst": "0.0.0.0/0"}],
        "dns": {"nameservers": ["192.0.2.9"]},
    }


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with TemporaryDirectory(prefix="np-", dir="/tmp") as root, ScratchNode(Path(root), "[plugins.bandwidth]\n") as made:
        assert made.run("install").returncode == 0
        yield made


@pytest.fixture
def sides(short_path: Path, consumer: Callable[[str], Path], node: ScratchNode) -> Iterator[tuple[Side, Side]]:
    programs = consumer("cni") / "bandwidth", node.paths.cni_bin / "nodeplug-bandwidth"
    with (
        Sandbox(short_path / "their-host") as one,
        Sandbox(short_path / "their-pod") as first,
        Sandbox(short_path / "our-host") as other,
        Sandbox(short_path / "our-pod") as second,
    ):
        made = Side(programs[0], one, first), Side(programs[1], other, second)
        for side in made:
            peer = ("type", "veth", "peer", "name", "eth0", "netns", str(side.pod.path))
            side.run("ip", "link", "add", "host0", *peer)
            side.run("ip", "link", "set", "host0", "up")
        yield made


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], version: str) -> None:
    theirs, ours = (side.call("ADD", BOTH, version) for side in sides)
    assert ours == theirs
    assert ours[0] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_host_has_the_same_and_nothing_is_left(sides: tuple[Side, Side], variant: str) -> None:
    theirs, ours = (side.call("ADD", VARIANTS[variant]) for side in sides)
    assert ours == theirs
    assert ours[0] == 0
    assert sides[1].shaped() == sides[0].shaped()
    for side in sides:
        assert side.call("CHECK", VARIANTS[variant]) == (0, {})
        assert side.call("DEL", VARIANTS[variant]) == (0, {})
    assert list(sides[1].shaped()) == list(sides[0].shaped()) == ["host0", "lo"]


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused_is_refused_in_the_same_words(sides: tuple[Side, Side], wrong: str) -> None:
    theirs, ours = (side.call("ADD", WRONG[wrong]) for side in sides)
    assert ours == theirs
    assert ours[0] == 1


def test_without_a_pair_both_say_the_same(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.run("ip", "link", "del", "host0")
    theirs, ours = (side.call("ADD", BOTH) for side in sides)
    assert ours == theirs
    assert ours[0] == 1


@pytest.mark.parametrize("changed", CHANGED)
def test_a_check_comes_to_the_same(sides: tuple[Side, Side], changed: str) -> None:
    for side in sides:
        assert side.call("ADD", INGRESS)[0] == 0
    theirs, ours = (side.call("CHECK", CHANGED[changed]) for side in sides)
    assert ours[0] == theirs[0]
    if ours[0]:
        assert ours[1].startswith(theirs[1])  # ours goes on with other differences


@pytest.mark.parametrize("variant", ["ingress", "egress", "both", "largest-burst"])
def test_each_checks_and_ends_what_the_other_made(sides: tuple[Side, Side], variant: str) -> None:
    theirs, ours = sides
    for side, other in ((theirs, ours.program), (ours, theirs.program)):
        assert side.call("ADD", VARIANTS[variant])[0] == 0
        assert side.call("CHECK", VARIANTS[variant], program=other) == (0, {})
        assert side.call("DEL", VARIANTS[variant], program=other) == (0, {})
        assert list(side.shaped()) == ["host0", "lo"]


def test_a_repeated_add_fails_there_and_succeeds_here(sides: tuple[Side, Side]) -> None:
    for side in sides:
        assert side.call("ADD", BOTH)[0] == 0
    theirs, ours = (side.call("ADD", BOTH) for side in sides)
    assert theirs == (1, "create qdisc: file exists")
    assert ours[0] == 0
    assert sides[1].call("CHECK", BOTH) == (0, {})


def test_a_tiny_burst_stops_packets_there_and_not_here(sides: tuple[Side, Side]) -> None:
    for side in sides:
        side.run("ip", "addr", "add", "192.0.2.1/24", "dev", "host0")
        inside = ["nsenter", f"--net={side.pod.path}", "ip"]
        subprocess.run([*inside, "addr", "add", "192.0.2.5/24", "dev", "eth0"], check=True)
        subprocess.run([*inside, "link", "set", "eth0", "up"], check=True)
        assert side.call("ADD", {"ingressRate": 8_000_000, "ingressBurst": 4_000})[0] == 0
    ping = ("ping", "-c", "1", "-W", "1", "-s", "1400", "192.0.2.5")
    with pytest.raises(subprocess.CalledProcessError):
        sides[0].run(*ping)
    sides[1].run(*ping)
