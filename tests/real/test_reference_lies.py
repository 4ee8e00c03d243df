"""A prevResult that lies: what the reference's plugins and ours make of it at CHECK, and in a chain at ADD and DEL."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.real.twins import PATH, Side, node_with, prepare, twins

from nodeplug.testing import ScratchNode

IPAM = {"type": "host-local", "subnet": "10.77.0.0/24"}
MAIN: Mapping[str, dict[str, Any]] = {
    "bridge": {"bridge": "br0", "isGateway": True, "ipam": IPAM},
    "ptp": {"ipam": IPAM},
    "macvlan": {"master": "up0", "ipam": IPAM},
    "host-device": {"device": "up0", "ipam": IPAM},
    "tap": {"ipam": IPAM},
}
RATES = {"ingressRate": 10**6, "ingressBurst": 10**6, "egressRate": 10**6, "egressBurst": 10**6}
MAPPINGS = [{"hostPort": 18080, "containerPort": 80, "protocol": "tcp"}]
CHAINED: Mapping[str, dict[str, Any]] = {
    "portmap": {"runtimeConfig": {"portMappings": MAPPINGS}},
    "bandwidth": RATES,
    "tuning": {"mtu": 1300},
    "firewall": {"ingressPolicy": "same-bridge"},
    "sbr": {},
}
PLUGINS = {**MAIN, **CHAINED}
BY_CHANCE = re.compile(
    r"^\d+: |@\w+|qdisc \S+ (?=state)|state \w+|NO-CARRIER,|,LOWER_UP|,M-DOWN|link/ether.*|veth\w{8}"
)
Result = dict[str, Any]


def _inside(result: Result) -> Result:
    return next(one for one in result["interfaces"] if one.get("sandbox"))


def other_name(result: Result) -> None:
    _inside(result)["name"] = "eth7"


def other_sandbox(result: Result) -> None:
    _inside(result)["sandbox"] = "/no/such/netns"


def other_mac(result: Result) -> None:
    _inside(result)["mac"] = "02:00:00:00:00:99"


def other_address(result: Result) -> None:
    for one in result["ips"]:
        one["address"] = "10.77.0.200/24"


def no_interfaces(result: Result) -> None:
    del result["interfaces"]
    for one in result.get("ips", []):
        one.pop("interface", None)


def no_host_end(result: Result) -> None:
    kept = [one for one in result["interfaces"] if one.get("sandbox")]
    result["interfaces"] = kept
    for one in result.get("ips", []):
        one["interface"] = 0


def no_such_index(result: Result) -> None:
    for one in result["ips"]:
        one["interface"] = 9


def no_addresses(result: Result) -> None:
    result.pop("ips", None)


LIES: Mapping[str, Callable[[Result], None]] = {
    one.__name__.replace("_", "-"): one
    for one in (
        other_name,
        other_sandbox,
        other_mac,
        other_address,
        no_interfaces,
        no_host_end,
        no_such_index,
        no_addresses,
    )
}


_NOT_A_BRIDGE = "what is in a container is no bridge: the reference drops what other bridges send to a host's eth0"
MEANT: Mapping[str, str] = {
    "bridge CHECK no-host-end": "ours knows its end by name, and finds the reference's by its peer",
    "tap CHECK other-mac": "the reference does not look at a tap's address",
    "firewall ADD no-host-end": _NOT_A_BRIDGE,
    "firewall CHECK no-host-end": _NOT_A_BRIDGE,
    "firewall CHECK no-interfaces": "no ADD succeeds with it",
    "sbr CHECK (other-address|no-addresses)": "the reference looks at nothing",
}
"""Where one refuses and the other does not, with the reason."""
KEPT = {("sbr", "other-address"): "the rule is in the container's namespace, and ends with it"}
WORDS = {
    "other-name": "has no interface eth0 with a sandbox",
    "other-sandbox": "is in sandbox /no/such/netns, not ",
    "other-mac": "has MAC .*, not 02:00:00:00:00:99",
    "other-address": r"lost its address 10\.77\.0\.200/24",
    "no-interfaces": "has no interface eth0 with a sandbox",
    "no-host-end": "",
}
"""What ours says of a lie at CHECK."""


def truth(_: Result) -> None:
    """Change nothing."""


@dataclass(frozen=True)
class Caller:
    """Executes plugins of one side, for the container c0."""

    side: Side

    def call(self, verb: str, kind: str, before: Result | None = None) -> tuple[int, str, Result]:
        """Return the error's code (0: none), its sentence, and the result."""
        config = {"cniVersion": "1.0.0", "name": "lies", "type": kind, **PLUGINS[kind]}
        if "ipam" in config:
            config["ipam"] = {**IPAM, "dataDir": str(self.side.folder / "addresses")}
        if before is not None:
            config["prevResult"] = before
        env = {
            "PATH": PATH,
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c0",
            "CNI_NETNS": str(self.side.pod.path),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": ":".join(map(str, self.side.bins)),
        }
        name = f"nodeplug-{kind}" if kind in self.side.ours else kind
        program = next(path / name for path in self.side.bins if (path / name).exists())
        stdin = json.dumps(config).encode()
        with self.side.host.netns.entered():
            done = subprocess.run([program], env=env, input=stdin, capture_output=True, check=False)
        told = json.loads(done.stdout or "{}")
        return (int(told["code"]), str(told["msg"]), {}) if done.returncode else (0, "", told)

    def add(self, kind: str, before: Result | None = None) -> Result:
        """Have an ADD succeed."""
        code, text, result = self.call("ADD", kind, before)
        assert code == 0, text
        return result

    def state(self) -> list[str]:
        """Return what the host and the container have, a line for each thing."""
        found = []
        for where, script in ((self.side.host, "ip -o link; nft list ruleset"), (self.side.pod, "ip -o link; ip rule")):
            lines = self.side.run(where, "sh", "-c", script).splitlines()
            found += [BY_CHANCE.sub("", line).strip() for line in lines]
        return sorted(found)


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all: each test has hosts and containers of its own."""
    with node_with(*PLUGINS, "host-local") as made:
        yield made


@pytest.fixture
def callers(short_path: Path, node: ScratchNode, consumer: Callable[[str], Path]) -> Iterator[list[Caller]]:
    with twins(short_path, consumer("cni"), node.paths.cni_bin, kinds=((), [*PLUGINS])) as sides:
        for side in sides:
            prepare(side, "up0")
        yield [Caller(side) for side in sides]


def told(result: Result, lie: Callable[[Result], None]) -> Result:
    changed = deepcopy(result)
    lie(changed)
    return changed


def agree(kind: str, verb: str, lie: str, codes: list[int]) -> bool:
    """Whether both refuse or neither, unless it is meant."""
    return ((codes[0] == 0) == (codes[1] == 0)) != any(
        re.fullmatch(pattern, f"{kind} {verb} {lie}") for pattern in MEANT
    )


@pytest.mark.parametrize("kind", MAIN)
def test_a_lie_about_an_interface_is_found_by_check(callers: list[Caller], kind: str) -> None:
    results = [caller.add(kind) for caller in callers]
    for lie, change in {"truth": truth, **LIES}.items():
        theirs, ours = (
            caller.call("CHECK", kind, told(result, change)) for caller, result in zip(callers, results, strict=True)
        )
        assert agree(kind, "CHECK", lie, [theirs[0], ours[0]]), (lie, theirs, ours)
        assert not ours[0] or re.search(WORDS[lie], ours[1]), (lie, ours)


@pytest.mark.parametrize("kind", CHAINED)
def test_a_chain_that_is_lied_to_leaves_nothing(callers: list[Caller], kind: str) -> None:
    """A refused ADD leaves nothing, and neither do the DELs of the chain, which have the same lie."""
    for caller in callers:  # what stays for the next container is there
        first = caller.add("bridge")
        caller.add(kind, first)
        for one in (kind, "bridge"):
            assert caller.call("DEL", one, first)[0] == 0
    clean = [caller.state() for caller in callers]
    for lie, change in LIES.items():
        if (kind, lie) in KEPT:
            continue
        codes = []
        for caller, before in zip(callers, clean, strict=True):
            result = caller.add("bridge")
            attached = caller.state()
            lying = told(result, change)
            code, text, _ = caller.call("ADD", kind, lying)
            codes.append(code)
            if caller.side.ours and code:
                assert [line for line in caller.state() if line not in attached] == [], (lie, text)
            deleted = [caller.call("DEL", one, lying)[:2] for one in (kind, "bridge")]
            assert deleted == [(0, ""), (0, "")], lie
            if caller.side.ours:
                assert [line for line in caller.state() if line not in before] == [], lie
        assert agree(kind, "ADD", lie, codes), (lie, codes)


@pytest.mark.parametrize("kind", CHAINED)
def test_a_lie_in_a_chain_is_found_by_check_where_the_references_finds_it(callers: list[Caller], kind: str) -> None:
    results = []
    for caller in callers:
        results.append(caller.add("bridge"))
        caller.add(kind, results[-1])
    for lie, change in {"truth": truth, **LIES}.items():
        codes = [
            caller.call("CHECK", kind, told(result, change))[0] for caller, result in zip(callers, results, strict=True)
        ]
        assert agree(kind, "CHECK", lie, codes), (lie, codes)
