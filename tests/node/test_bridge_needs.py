"""What a bridge network needs, when somebody takes it away: STATUS and health tell, and cry for nothing else."""

import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any

import pytest
from tests.programs import need

from nodeplug import Journal, Netns, NotReady
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net import needs
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables import encoding as nftables
from nodeplug_net.nftables import masquerade_messages as nft
from nodeplug_net.nftables.masquerade import Masquerade
from nodeplug_net.sysctl import get_sysctl, set_sysctl

Make = Callable[..., dict[str, Any]]


Start = Callable[..., Bridge]


@pytest.fixture
def start(scratch: ScratchCni) -> Iterator[Start]:
    """Start a plugin whose daemon lives in the host namespace."""
    made: list[Bridge] = []

    def begin(boot_id: str = "boot-1") -> Bridge:
        host = replace(scratch.host, boot_id=boot_id, journal=Journal(scratch.folder / "journal", boot_id))
        plugin = Bridge(BridgeConfig(data_dir=scratch.folder / "networks", repair=False), host)
        made.append(plugin)
        scratch.on_host(plugin.start)
        return plugin

    yield begin
    for plugin in made:
        plugin.stop()


@pytest.fixture
def bridge(start: Start) -> Bridge:
    return start()


@pytest.fixture
def network(config: Make) -> dict[str, Any]:
    return config(ipMasq=True, cniVersion="1.1.0")


def delete_bridge(scratch: ScratchCni) -> None:
    def run() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  damage is done with other means than the plugin's own

        with IPRoute() as route:
            route.link("del", index=route.link_lookup(ifname="br0")[0])

    scratch.on_host(run)


def on_bridge(scratch: ScratchCni, action: Callable[[Links, Link], object]) -> None:
    def run() -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            link = links.get("br0")
            assert link is not None
            action(links, link)

    scratch.on_host(run)


def take_gateway(scratch: ScratchCni) -> None:
    on_bridge(scratch, lambda links, link: links.remove_address(link, ip_interface("10.88.0.1/24")))


def flush(scratch: ScratchCni) -> None:
    def run() -> None:
        with Netlink(12) as netlink:
            netlink.exchange([(nftables.begin(None), False), (nft.delete_table(), True), (nftables.end(), False)])

    scratch.on_host(run)


def set_down(scratch: ScratchCni) -> None:
    on_bridge(scratch, Links.set_down)


def stop_forwarding(scratch: ScratchCni) -> None:
    scratch.on_host(lambda: set_sysctl("ipv4/ip_forward", "0"))


def set_ports_down(scratch: ScratchCni) -> None:
    def run(links: Links, link: Link) -> None:
        for port in links.ports(link):
            links.set_down(port)

    on_bridge(scratch, run)


def drop_route(scratch: ScratchCni) -> None:
    need("ip")
    command = ["ip", "route", "del", "10.88.0.0/24", "dev", "br0"]
    scratch.on_host(lambda: subprocess.run(command, check=True))


def unmasquerade(scratch: ScratchCni) -> None:
    def run() -> None:
        with Netlink(12) as netlink:
            masquerade = Masquerade(netlink)
            masquerade.remove(masquerade.entries("nodeplug net c1 "))

    scratch.on_host(run)


DAMAGE = {
    "a deleted route": (drop_route, r"the host has no route to 10\.88\.0\.0/24, the subnet of network net"),
    "addresses without masquerading": (unmasquerade, r"address 10\.88\.0\.2 of container c1 is not masqueraded"),
    "a host that forwards no more": (stop_forwarding, "the host forwards nothing for network net, net/ipv4/ip_forward"),
    "a port that is down": (set_ports_down, "1 interfaces of network net, such as veth[0-9a-f]{8}, are down"),
    "a deleted bridge": (delete_bridge, "bridge br0 of network net is gone: the next ADD"),
    "a gateway address that was removed": (take_gateway, r"bridge br0 lost 10\.88\.0\.1, the gateway of network net"),
    "a flushed ruleset": (flush, r"subnet 10\.88\.0\.0/24 has no rule that masquerades it"),
    "a bridge that is down": (set_down, "bridge br0 of network net is down"),
}


def health(scratch: ScratchCni, plugin: Bridge) -> None:
    scratch.on_host(plugin.health)


@pytest.mark.parametrize(("damage", "text"), DAMAGE.values(), ids=DAMAGE)
@pytest.mark.parametrize("restarted", [False, True], ids=["", "restarted"])
def test_health_tells_what_a_network_with_containers_lacks(
    scratch: ScratchCni, start: Start, bridge: Bridge, network: Any, damage: Any, text: str, restarted: bool
) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    health(scratch, bridge)
    damage(scratch)
    with pytest.raises(NotReady, match=text):
        health(scratch, start() if restarted else bridge)


def test_status_makes_a_deleted_bridge_anew(scratch: ScratchCni, bridge: Bridge, network: Any) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, network, "c1", netns)
    scratch.status(bridge, network)
    delete_bridge(scratch)
    scratch.status(bridge, network)
    health(scratch, bridge)
    scratch.check(bridge, network, "c1", netns, result)


def test_a_deleted_bridge_whose_configuration_an_older_version_did_not_record_is_told(
    scratch: ScratchCni, start: Start, bridge: Bridge, network: Any
) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    entry = scratch.host.journal.read("network net")
    assert entry is not None
    older = {key: value for key, value in entry.data.items() if key not in {"addresses", "mac", "config"}}
    scratch.host.journal.write("network net", phase=entry.phase, data=older)
    delete_bridge(scratch)
    plugin = start()
    with pytest.raises(NotReady, match="bridge br0 of network net is gone: recreate their containers"):
        health(scratch, plugin)
    with pytest.raises(NotReady, match="bridge br0 of network net is gone"):
        scratch.status(plugin, network)


def test_status_lets_the_host_forward_again(scratch: ScratchCni, bridge: Bridge, network: Any) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    stop_forwarding(scratch)
    scratch.status(bridge, network)
    assert scratch.on_host(lambda: get_sysctl("ipv4/ip_forward")) == "1"


@pytest.mark.parametrize("gateway", [{"gateway": "10.88.0.1"}, {}], ids=["named", "not named"])
def test_status_gives_back_what_a_network_of_another_ipam_lost(
    scratch: ScratchCni, bridge: Bridge, config: Make, gateway: dict[str, str]
) -> None:
    network = config(ipam={"type": "static", "addresses": [{"address": "10.88.0.5/24", **gateway}]})
    scratch.add(bridge, network, "c1", scratch.container())
    take_gateway(scratch)
    stop_forwarding(scratch)
    scratch.status(bridge, network)
    health(scratch, bridge)
    assert scratch.on_host(lambda: get_sysctl("ipv4/ip_forward")) == "1"


def test_status_sets_a_port_up_again(scratch: ScratchCni, bridge: Bridge, network: Any) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    set_ports_down(scratch)
    scratch.status(bridge, network)
    health(scratch, bridge)


def test_status_puts_back_what_a_bridge_made_anew_left_behind(
    scratch: ScratchCni, bridge: Bridge, network: Any
) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    delete_bridge(scratch)
    scratch.add(bridge, network, "c2", scratch.container())
    lost = r"1 interfaces of network net, such as veth[0-9a-f]{8}, left bridge br0"
    with pytest.raises(NotReady, match=lost):
        health(scratch, bridge)
    scratch.status(bridge, network)
    health(scratch, bridge)


def test_status_gives_back_a_gateway_of_a_range_that_only_the_container_named(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    asked = config(ipam={"type": "host-local"}, capabilities={"ipRanges": True})
    ranges = {"runtimeConfig": {"ipRanges": [[{"subnet": "10.88.0.0/24"}]]}}
    scratch.add(bridge, asked | ranges, "c1", scratch.container())
    take_gateway(scratch)
    scratch.status(bridge, asked)
    health(scratch, bridge)


@pytest.mark.parametrize("damage", [damage for damage, _ in DAMAGE.values()], ids=DAMAGE)
def test_a_network_without_containers_is_ready_whatever_is_missing(
    scratch: ScratchCni, bridge: Bridge, network: Any, damage: Any
) -> None:
    scratch.status(bridge, network)
    health(scratch, bridge)
    scratch.add(bridge, network, "c1", scratch.container())
    scratch.delete(bridge, network, "c1")
    damage(scratch)
    scratch.status(bridge, network)
    health(scratch, bridge)


def test_another_subnet_of_a_changed_configuration_needs_no_former_gateway(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config("10.88.0.0/24", forceAddress=True), "c1", scratch.container())
    scratch.add(bridge, config("10.99.0.0/24", forceAddress=True), "c2", scratch.container())
    health(scratch, bridge)


def test_what_was_noted_in_an_earlier_boot_is_forgotten(
    scratch: ScratchCni, start: Start, bridge: Bridge, network: Any
) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    take_gateway(scratch)
    health(scratch, start("boot-2"))


def test_a_network_is_noted_once_and_not_with_each_container(scratch: ScratchCni, bridge: Bridge, network: Any) -> None:
    scratch.add(bridge, network, "c1", scratch.container())
    (record,) = (scratch.folder / "journal").glob("network*.json")
    before = record.stat().st_mtime_ns
    scratch.add(bridge, network, "c2", scratch.container())
    assert record.stat().st_mtime_ns == before


def test_networks_of_another_host_namespace_are_not_the_daemons(
    scratch: ScratchCni, network: Any, bridge: Bridge
) -> None:
    other: Netns = scratch.container()
    scratch.host_netns, home = other, scratch.host_netns
    scratch.add(bridge, network, "c1", home)
    scratch.host_netns = home
    assert list((scratch.folder / "journal").glob("network*.json")) == []


def recorded(scratch: ScratchCni) -> list[str]:
    return [entry.key for entry in scratch.host.journal.entries() if entry.phase == "network"]


def test_the_record_of_a_network_stays_for_the_container_after_its_last(
    scratch: ScratchCni, bridge: Bridge, network: Any
) -> None:
    netns = scratch.container()
    scratch.add(bridge, network, "c1", netns)
    scratch.delete(bridge, network, "c1", netns)
    for _ in range(2):
        scratch.on_host(bridge.health)
    assert recorded(scratch) == ["network net"]


def test_the_record_of_a_network_that_is_not_used_any_more_goes(
    scratch: ScratchCni, bridge: Bridge, network: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(needs, "KEPT", 0.0)
    netns = scratch.container()
    scratch.add(bridge, network, "c1", netns)
    for _ in range(2):
        scratch.on_host(bridge.health)
    assert recorded(scratch) == ["network net"]
    scratch.delete(bridge, network, "c1", netns)
    scratch.on_host(bridge.health)
    scratch.add(bridge, network, "c1", netns)
    scratch.delete(bridge, network, "c1", netns)
    scratch.on_host(bridge.health)
    assert recorded(scratch) == ["network net"]
    scratch.on_host(bridge.health)
    assert recorded(scratch) == []
    scratch.add(bridge, network, "c2", scratch.container())
    assert recorded(scratch) == ["network net"]
    delete_bridge(scratch)
    with pytest.raises(NotReady, match="is gone"):
        scratch.on_host(bridge.health)
