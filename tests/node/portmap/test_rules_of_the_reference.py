"""The rules of the reference's portmap, written for a container that is handed over to it; 0.2 s each."""

from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from typing import Any

import pytest
from tests.node.level.lab import run
from tests.node.portmap.lab import mapping
from tests.programs import need

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.attachment import Attachment
from nodeplug_net.portmap.config import PortmapConf, Wanted
from nodeplug_net.reference.ports_writing import Planned, writer

TARGETS = {4: "10.88.0.2/24", 6: "fd00:88::2/64"}
GOALS = {4: "10.88.0.2:80", 6: "[fd00:88::2]:80"}


def planned(**keys: Any) -> Sequence[Planned]:
    ports: Mapping[str, Any] = {"portMappings": [mapping(8080)]}
    conf = PortmapConf.model_validate({"runtimeConfig": ports, **keys})
    return [(Attachment("net", "c1", "eth0"), Wanted(conf, tuple(map(ip_interface, TARGETS.values()))))]


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
