"""The rules of the reference's portmap, written for a container that is handed over to it; 0.2 s each."""

import logging
from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Any

import pytest
from tests.node.level.lab import run
from tests.node.portmap.lab import mapping
from tests.programs import need

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.attachment import Attachment
from nodeplug_net.nftables.sockets import open_nft
from nodeplug_net.portmap.config import PortmapConf, Wanted
from nodeplug_net.reference.nft import ReferenceNft, write
from nodeplug_net.reference.ports import ReferencePorts
from nodeplug_net.reference.ports_writing import Planned, writer
from nodeplug_net.reference.rules import Rule

TARGETS = {4: "10.88.0.2/24", 6: "fd00:88::2/64"}
OTHERS = {4: "10.88.0.3/24", 6: "fd00:88::3/64"}
LOG = logging.LoggerAdapter(logging.getLogger(__name__))
GOALS = {4: "10.88.0.2:80", 6: "[fd00:88::2]:80"}


def planned(
    container: str = "c1", targets: Mapping[int, str] = TARGETS, port: int = 8080, **keys: Any
) -> Sequence[Planned]:
    ports: Mapping[str, Any] = {"portMappings": [mapping(port)]}
    conf = PortmapConf.model_validate({"runtimeConfig": ports, **keys})
    return [(Attachment("net", container, "eth0"), Wanted(conf, tuple(map(ip_interface, targets.values()))))]


def listed(scratch: ScratchCni, backend: str) -> str:
    if backend == "nftables":
        return run(scratch.host_netns, "nft list ruleset")
    return "".join(run(scratch.host_netns, f"{program} -t nat -S") for program in ("iptables", "ip6tables"))


@pytest.mark.parametrize("version", [4, 6])
def test_nftables_leads_the_port_to_the_container_in_both_versions_of_ip(scratch: ScratchCni, version: int) -> None:
    need("nft")
    scratch.on_host(writer("nftables", planned()))
    rules = run(scratch.host_netns, f"nft list table {'ip' if version == 4 else 'ip6'} cni_hostport")
    assert f'tcp dport 8080 dnat to {GOALS[version]} comment "c1"' in rules
    assert "masquerade" in rules


@pytest.mark.parametrize("version", [4, 6])
def test_iptables_leads_the_port_to_the_container_in_both_versions_of_ip(scratch: ScratchCni, version: int) -> None:
    need("iptables", "ip6tables")
    scratch.on_host(writer("iptables", planned()))
    rules = run(scratch.host_netns, f"{'iptables' if version == 4 else 'ip6tables'} -t nat -S")
    assert f"-p tcp -m tcp --dport 8080 -j DNAT --to-destination {GOALS[version]}" in rules
    assert "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE" in rules


def test_without_snat_nothing_is_masqueraded(scratch: ScratchCni) -> None:
    need("nft")
    scratch.on_host(writer("nftables", planned(snat=False)))
    assert "masquerade" not in run(scratch.host_netns, "nft list table ip cni_hostport")


@pytest.mark.parametrize("backend", ["nftables", "iptables"])
def test_the_end_of_a_container_takes_its_rules_and_leaves_those_of_others(scratch: ScratchCni, backend: str) -> None:
    need(*(["nft"] if backend == "nftables" else ["iptables", "ip6tables"]))
    scratch.on_host(writer(backend, [*planned(), *planned("c2", OTHERS, 8081)]))

    def end() -> None:
        with open_nft() as netlink:
            ReferencePorts(netlink, LOG).end(Attachment("net", "c1", "eth0"), ())

    assert all(goal in listed(scratch, backend) for goal in (*GOALS.values(), "10.88.0.3:80", "[fd00:88::3]:80"))
    scratch.on_host(end)
    rules = listed(scratch, backend)
    assert not any(str(ip_interface(target).ip) in rules for target in TARGETS.values())
    assert rules.count("10.88.0.3:80") == rules.count("[fd00:88::3]:80") == 1


def test_masquerading_that_is_written_is_found_and_removed(scratch: ScratchCni) -> None:
    need("nft")

    def story() -> tuple[set[str], list[Rule]]:
        with open_nft() as netlink:
            write(netlink, [(Attachment("net", "c1", "eth0"), ip_interface(one)) for one in TARGETS.values()])
            reference = ReferenceNft(netlink)
            found = reference.rules()
            reference.remove(found)
            return {str(one.source) for one in found}, reference.rules()

    assert scratch.on_host(story) == ({"10.88.0.2/32", "fd00:88::2/128"}, [])
