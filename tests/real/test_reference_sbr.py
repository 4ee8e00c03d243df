"""sbr of the reference and ours, side by side: the same configuration comes to the same rules and routes."""

import itertools
import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from nodeplug.testing import Sandbox, ScratchNode

VERSIONS = ["0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"]
FOUR, FIVE = ("10.9.0.2/24", "10.9.0.1"), ("10.9.0.3/24", "10.9.0.1")
SIX, BARE = ("fd09::2/64", "fd09::1"), ("10.9.0.2/24", "")
VARIANTS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "one": (FOUR,),
    "two-of-a-subnet": (FOUR, FIVE),
    "no-gateway": (BARE,),
    "six": (SIX,),
    "both": (FOUR, SIX),
}
WRONG: Mapping[str, dict[str, Any]] = {
    "no-result": {"prevResult": None},
    "no-addresses": {"prevResult": {"cniVersion": "1.0.0", "interfaces": [{"name": "net1"}]}},
}


@dataclass(frozen=True)
class Side:
    """One implementation, and a container of its own with eth0 and net1."""

    program: Path
    pod: Sandbox

    def call(self, verb: str, keys: Mapping[str, Any], version: str = "1.0.0", ifname: str = "net1") -> Any:
        """Return the exit status, and the result or the sentence."""
        env = {"CNI_COMMAND": verb, "CNI_CONTAINERID": "c1", "CNI_NETNS": str(self.pod.path), "CNI_IFNAME": ifname}
        config = {"cniVersion": version, "name": "net", "type": "sbr", **keys}
        stdin = json.dumps({key: value for key, value in config.items() if value is not None}).encode()
        done = subprocess.run(
            [self.program], env={**env, "CNI_PATH": "/nowhere"}, input=stdin, capture_output=True, check=False
        )
        document = json.loads(done.stdout or "{}")
        if done.returncode:
            return done.returncode, document["msg"]
        if not document.get("dns"):
            document.pop("dns", None)
        return 0, document

    def run(self, *words: str) -> str:
        command = ["nsenter", f"--net={self.pod.path}", "ip", *words]
        return subprocess.run(command, capture_output=True, check=True, text=True).stdout

    def rules(self) -> Any:
        return [json.loads(self.run(family, "-j", "rule", "show")) for family in ("-4", "-6")]

    def routes(self, *families: str) -> Any:
        """Every route but the kernel's own and link-local ones."""
        said = [json.loads(self.run(family, "-j", "route", "show", "table", "all")) for family in families]
        told = [
            {key: value for key, value in one.items() if key not in {"flags", "pref"}}
            for one in itertools.chain.from_iterable(said)
            if one.get("table") != "local" and not str(one["dst"]).startswith(("fe80", "ff00"))
        ]
        return sorted(told, key=str)


def previous(version: str, addresses: tuple[tuple[str, str], ...]) -> dict[str, Any]:
    def one(address: str, gateway: str) -> dict[str, Any]:
        family = {} if version.startswith("1.") else {"version": "6" if ":" in address else "4"}
        return {**family, "address": address, "interface": 1, **({"gateway": gateway} if gateway else {})}

    return {
        "cniVersion": version,
        "interfaces": [{"name": "br0"}, {"name": "net1", "sandbox": "/run/netns/x"}],
        "ips": [one(*address) for address in addresses],
    }


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has containers of its own."""
    with TemporaryDirectory(prefix="np-", dir="/tmp") as root, ScratchNode(Path(root), "[plugins.sbr]\n") as made:
        assert made.run("install").returncode == 0
        yield made


@pytest.fixture
def sides(short_path: Path, consumer: Callable[[str], Path], node: ScratchNode) -> Iterator[tuple[Side, Side]]:
    programs = consumer("cni") / "sbr", node.paths.cni_bin / "nodeplug-sbr"
    with Sandbox(short_path / "their-pod") as one, Sandbox(short_path / "our-pod") as other:
        made = Side(programs[0], one), Side(programs[1], other)
        for side in made:
            prepare(side)
        yield made


def prepare(side: Side) -> None:
    given = {"eth0": ("10.7.0.2/24", "fd07::2/64"), "net1": ("10.9.0.2/24", "10.9.0.3/24", "fd09::2/64")}
    for name, addresses in given.items():
        side.run("link", "add", name, "type", "veth", "peer", "name", f"{name}-peer")
        side.run("link", "set", f"{name}-peer", "up")
        side.run("link", "set", name, "up")
        for address in addresses:
            side.run("address", "add", address, "dev", name, *(("nodad",) if ":" in address else ()))
    side.run("route", "add", "default", "via", "10.7.0.1")
    side.run("route", "add", "192.0.2.0/24", "via", "10.9.0.9", "dev", "net1", "mtu", "1300")
    side.run("route", "add", "198.51.100.0/24", "dev", "net1")
    side.run("rule", "add", "from", "203.0.113.5", "lookup", "101")


@pytest.mark.parametrize("version", VERSIONS)
def test_results_are_equal_in_every_version(sides: tuple[Side, Side], version: str) -> None:
    theirs, ours = (side.call("ADD", {"prevResult": previous(version, (FOUR, SIX))}, version) for side in sides)
    assert ours == theirs
    assert ours[0] == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_rules_and_routes_are_the_same(sides: tuple[Side, Side], variant: str) -> None:
    """The reference carries routes of the other version of IP along, to a table where nothing looks for them."""
    addresses = VARIANTS[variant]
    families = sorted({"-6" if ":" in address else "-4" for address, _ in addresses})
    keys = {"prevResult": previous("1.0.0", addresses)}
    before = [side.rules() for side in sides]
    for side in sides:
        assert side.call("ADD", keys)[0] == 0
    assert sides[1].rules() == sides[0].rules()
    if len(families) == 1:
        assert sides[1].routes(*families) == sides[0].routes(*families)
    else:
        tables = {"-4": "100", "-6": "102"}
        for family, table in tables.items():
            theirs, ours = ([one for one in side.routes(family) if one.get("table", "main") == table] for side in sides)
            assert ours == theirs
    for side in sides:
        assert side.call("CHECK", keys) == (0, {})
        assert side.call("DEL", keys) == (0, {})
    assert [side.rules() for side in sides] == before


def test_with_a_table_both_make_rules_alone(sides: tuple[Side, Side]) -> None:
    keys = {"prevResult": previous("1.0.0", (FOUR, SIX)), "table": 7}
    for side in sides:
        side.run("route", "add", "default", "via", "10.9.0.1", "table", "7")
        side.run("route", "add", "default", "via", "fd09::1", "table", "7")
        assert side.call("ADD", keys)[0] == 0
    assert sides[1].rules() == sides[0].rules()
    assert sides[1].routes("-4", "-6") == sides[0].routes("-4", "-6")
    for side in sides:
        assert side.call("DEL", keys) == (0, {})
    assert sides[1].rules() == sides[0].rules()


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_refused_is_refused_in_the_same_words(sides: tuple[Side, Side], wrong: str) -> None:
    theirs, ours = (side.call("ADD", WRONG[wrong]) for side in sides)
    assert ours == theirs
    assert ours[0] == 1


def test_an_interface_that_is_not_there_is_named_in_the_same_words(sides: tuple[Side, Side]) -> None:
    told = previous("1.0.0", (FOUR,))
    told["interfaces"][1]["name"] = "net2"
    theirs, ours = (side.call("ADD", {"prevResult": told}, ifname="net2") for side in sides)
    assert ours == theirs
    assert ours[0] == 1


def test_a_repeated_add_takes_other_tables_there_and_the_same_here(sides: tuple[Side, Side]) -> None:
    keys = {"prevResult": previous("1.0.0", (FOUR,))}
    once = []
    for side in sides:
        side.call("ADD", keys)
        once.append(side.rules())
        side.call("ADD", keys)
    assert sides[0].rules() != once[0]
    assert sides[1].rules() == once[1]


def test_link_local_routes_go_there_and_stay_here(sides: tuple[Side, Side]) -> None:
    for side in sides:
        assert side.call("ADD", {"prevResult": previous("1.0.0", (FOUR, SIX))})[0] == 0
    theirs, ours = (side.run("-6", "route", "show", "dev", "net1") for side in sides)
    assert "fe80::/64" not in theirs
    assert "fe80::/64" in ours
