"""The reference's firewall and ours: the same rules in the same order, and each container ended whole."""

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import CniInterface, CniIp, CniResult
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
ADDRESSES = ("10.77.0.2/24", "fd77::2/64")
RESULT = CniResult(
    interfaces=(CniInterface("br0"), CniInterface("veth1"), CniInterface("eth0", sandbox="/netns")),
    ips=tuple(CniIp(ip_interface(address), interface=2) for address in ADDRESSES),
)
PREVIOUS = {
    "cniVersion": "1.0.0",
    "interfaces": [{"name": "br0"}, {"name": "veth1"}, {"name": "eth0", "sandbox": "/netns"}],
    "ips": [{"address": address, "interface": 2} for address in ADDRESSES],
}
KEYS: list[dict[str, str]] = [
    {},
    {"iptablesAdminChainName": "MINE"},
    {"ingressPolicy": "same-bridge"},
    {"ingressPolicy": "isolated"},
]


def conf(**keys: str) -> dict[str, Any]:
    return {"cniVersion": "1.0.0", "name": "net", "type": "firewall", "backend": "iptables", **keys}


def theirs(scratch: ScratchCni, program: Path, verb: str, **keys: str) -> None:
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": "c1",
        "CNI_NETNS": "/proc/1/ns/net",
        "CNI_NETNS_OVERRIDE": "1",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": str(program.parent),
        "PATH": PATH,
    }
    stdin = json.dumps({**conf(**keys), "prevResult": PREVIOUS})
    done = scratch.on_host(
        lambda: subprocess.run([program], env=env, input=stdin, capture_output=True, text=True, check=False)
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rules(scratch: ScratchCni) -> dict[str, list[str]]:
    """Each chain of both tables, without what says whose a rule is."""
    found: dict[str, list[str]] = {}
    for program in ("iptables", "ip6tables"):
        done = scratch.on_host(
            lambda: subprocess.run([program, "-S"], capture_output=True, text=True, check=True)  # noqa: B023
        )
        for line in done.stdout.splitlines():
            chain = f"{program} {line.split()[1]}"
            found.setdefault(chain, []).append(re.sub(r' -m comment --comment "nodeplug [^"]*"', "", line))
    return found


@pytest.fixture
def program(consumer: Callable[[str], Path]) -> Path:
    need("iptables")
    return consumer("cni") / "firewall"


@pytest.fixture
def twins(tmp_path: Path) -> Iterator[tuple[ScratchCni, ScratchCni]]:
    for name in ("ours", "theirs"):
        (tmp_path / name).mkdir()
    with ScratchCni(tmp_path / "ours") as ours, ScratchCni(tmp_path / "theirs") as other:
        yield ours, other


@pytest.mark.parametrize("keys", KEYS)
def test_the_rules_are_the_references_in_its_order(
    twins: tuple[ScratchCni, ScratchCni], program: Path, keys: dict[str, str]
) -> None:
    ours, other = twins
    plugin = Firewall(FirewallConfig(), ours.host)
    netns = ours.container()
    ours.add(plugin, conf(**keys), "c1", netns, prev_result=RESULT)
    theirs(other, program, "ADD", **keys)
    assert rules(ours) == rules(other)
    ours.delete(plugin, conf(**keys), "c1", netns)
    theirs(other, program, "DEL", **keys)
    assert rules(ours) == rules(other)
    plugin.stop()


@pytest.mark.parametrize("keys", KEYS)
def test_a_container_of_the_reference_is_checked_and_ended(
    twins: tuple[ScratchCni, ScratchCni], program: Path, keys: dict[str, str]
) -> None:
    ours, other = twins
    plugin = Firewall(FirewallConfig(), ours.host)
    netns = ours.container()
    theirs(ours, program, "ADD", **keys)
    ours.check(plugin, conf(**keys), "c1", netns, RESULT)
    ours.delete(plugin, conf(**keys), "c1", netns, prev_result=RESULT)
    theirs(other, program, "ADD", **keys)
    theirs(other, program, "DEL", **keys)
    assert rules(ours) == rules(other)
    plugin.stop()


def test_the_reference_and_ours_share_chains_and_jumps(twins: tuple[ScratchCni, ScratchCni], program: Path) -> None:
    ours, other = twins
    plugin = Firewall(FirewallConfig(), ours.host)
    ours.add(plugin, conf(ingressPolicy="isolated"), "c1", ours.container(), prev_result=RESULT)
    theirs(ours, program, "ADD", ingressPolicy="isolated")
    theirs(ours, program, "CHECK", ingressPolicy="isolated")
    theirs(ours, program, "DEL", ingressPolicy="isolated")
    theirs(other, program, "ADD", ingressPolicy="isolated")
    assert rules(ours) == rules(other)
    plugin.stop()
