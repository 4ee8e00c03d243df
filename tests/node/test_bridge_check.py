"""CHECK finds each kind of drift, GC what is lost, STATUS what will fail."""

import subprocess
from collections.abc import Callable
from dataclasses import replace
from ipaddress import ip_interface
from typing import Any, TypeVar

import pytest
from tests.own_descriptors import room_for_descriptors
from tests.programs import need

from nodeplug import CniRoute, LimitedConnectivity, Netns, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables.masquerade import Masquerade

Make = Callable[..., dict[str, Any]]
Look = Callable[[Netns], Any]
PORT = Attachment("net", "c1", "eth0").host_veth


Result = TypeVar("Result")


def change(netns: Netns, name: str, action: Callable[[Links, Link], Result]) -> Result:
    """Do something to a link of a namespace, or look at it."""

    def run() -> Result:
        with Netlink() as netlink:
            links = Links(netlink)
            link = links.get(name)
            assert link is not None
            return action(links, link)

    return run_in(netns, run)


def unmasquerade(scratch: ScratchCni) -> None:
    def run() -> None:
        with Netlink(12) as netlink:
            table = Masquerade(netlink)
            table.remove(table.entries("")[:1])

    scratch.on_host(run)


def pyroute(netns: Netns, action: Callable[[Any], None]) -> None:
    def run() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  damage is done with other means than the plugin's own

        with IPRoute() as route:
            action(route)

    run_in(netns, run)


def remove_default_route(netns: Netns) -> None:
    pyroute(netns, lambda route: route.route("del", dst="0.0.0.0/0", gateway="10.88.0.1"))


def drop_route() -> None:
    need("ip")
    subprocess.run(["ip", "route", "del", "10.88.0.0/24"], check=True)


def release_port(netns: Netns) -> None:
    pyroute(netns, lambda route: route.link("set", index=route.link_lookup(ifname=PORT)[0], master=0))


def set_hairpin(netns: Netns) -> None:
    pyroute(netns, lambda route: route.brport("set", index=route.link_lookup(ifname=PORT)[0], mode=1))


def unreserve(scratch: ScratchCni, *addresses: str) -> None:
    for address in addresses:
        (scratch.folder / "networks" / "net" / address).unlink()


Damage = Callable[[ScratchCni, Netns], None]
DRIFTS: dict[str, tuple[str, Damage]] = {
    "container interface down": ("eth0 is down", lambda _, c: change(c, "eth0", Links.set_down)),
    "container mac": (
        "has MAC 02:00:00:00:00:09",
        lambda _, c: change(c, "eth0", lambda links, link: links.set_mac(link, "02:00:00:00:00:09")),
    ),
    "container address": (
        "lost its address 10.88.0.2/24",
        lambda _, c: change(c, "eth0", lambda links, link: links.remove_address(link, ip_interface("10.88.0.2/24"))),
    ),
    "route": ("route 0.0.0.0/0 via 10.88.0.1 is missing", lambda _, c: remove_default_route(c)),
    "host veth down": (f"{PORT} is down", lambda s, _: change(s.host_netns, PORT, Links.set_down)),
    "host veth released": ("is not a port of bridge br0", lambda s, _: release_port(s.host_netns)),
    "host veth mac": (
        f"{PORT} has MAC",
        lambda s, _: change(s.host_netns, PORT, lambda links, link: links.set_mac(link, "02:00:00:00:00:09")),
    ),
    "hairpin": ("hairpin mode of", lambda s, _: set_hairpin(s.host_netns)),
    "bridge down": ("bridge br0 is down", lambda s, _: change(s.host_netns, "br0", Links.set_down)),
    "bridge address": (
        "br0 lost its address 10.88.0.1/24",
        lambda s, _: change(
            s.host_netns, "br0", lambda links, link: links.remove_address(link, ip_interface("10.88.0.1/24"))
        ),
    ),
    "bridge route": (
        "the host has no route to 10.88.0.0/24 through br0",
        lambda s, _: s.on_host(drop_route),
    ),
    "masquerade entry": ("is not masqueraded", lambda s, _: unmasquerade(s)),
    "reservation": (
        "Failed to find address added by container c1",
        lambda s, _: unreserve(s, "10.88.0.2", "fd00:88::2"),
    ),
    "one reservation": (
        "address fd00:88::2 is not reserved",
        lambda s, _: unreserve(s, "fd00:88::2"),
    ),
}


@pytest.mark.parametrize("drift", list(DRIFTS))
def test_check_names_a_drift(scratch: ScratchCni, bridge: Bridge, config: Make, drift: str) -> None:
    message, damage = DRIFTS[drift]
    netns, network = scratch.container(), config(ipMasq=True)
    result = scratch.add(bridge, network, "c1", netns)
    scratch.check(bridge, network, "c1", netns, result)
    damage(scratch, netns)
    with pytest.raises(PluginError) as refusal:
        scratch.check(bridge, network, "c1", netns, result)
    assert message in refusal.value.message


def test_check_knows_its_hop_of_a_route_that_two_interfaces_share(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    one, other = config(), config("10.89.0.0/24", "fd00:89::/64", name="other", bridge="br1")
    first = scratch.add(bridge, one, "c1", netns, "eth0")
    second = scratch.add(bridge, other, "c1", netns, "eth1")
    scratch.check(bridge, one, "c1", netns, first, "eth0")
    scratch.check(bridge, other, "c1", netns, second, "eth1")
    pyroute(netns, lambda route: route.route("del", dst="::/0", gateway="fd00:89::1"))
    scratch.check(bridge, one, "c1", netns, first, "eth0")
    with pytest.raises(PluginError, match="route ::/0 via fd00:89::1 is missing"):
        scratch.check(bridge, other, "c1", netns, second, "eth1")


def test_check_misses_an_interface_that_is_gone(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(), "c1", netns)
    change(scratch.host_netns, PORT, lambda links, link: bridge._plane.reaper.delete(link).wait(links))
    with pytest.raises(PluginError, match="interface eth0 does not exist"):
        scratch.check(bridge, config(), "c1", netns, result)


def test_check_misses_a_bridge_that_is_gone(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(), "c1", netns)
    with pytest.raises(PluginError, match="bridge br1 does not exist"):
        scratch.check(bridge, config(bridge="br1"), "c1", netns, result)


def test_check_accepts_extra_routes_and_addresses(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(), "c1", netns)
    change(netns, "eth0", lambda links, link: links.add_address(link, ip_interface("10.5.0.1/24")))
    scratch.check(bridge, config(), "c1", netns, result)


def test_check_misses_a_route_that_the_result_promises(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(), "c1", netns)
    promised = replace(result, routes=(*result.routes, CniRoute(ip_interface("10.5.0.0/16").network)))
    with pytest.raises(PluginError, match=r"route 10\.5\.0\.0/16"):
        scratch.check(bridge, config(), "c1", netns, promised)


# --- GC -----------------------------------------------------------------------------------------------------------


def test_gc_removes_what_is_not_valid_and_keeps_the_rest(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    network = config(ipMasq=True)
    containers = {name: scratch.container() for name in ("c1", "c2", "c3")}
    results = {name: scratch.add(bridge, network, name, netns) for name, netns in containers.items()}
    scratch.gc(bridge, network, [("c2", "eth0")])
    assert look(containers["c1"]).links == {"lo"}
    assert look(containers["c3"]).links == {"lo"}
    assert look(scratch.host_netns).links == {"lo", "br0", Attachment("net", "c2", "eth0").host_veth}
    scratch.check(bridge, network, "c2", containers["c2"], results["c2"])
    folder = scratch.folder / "networks" / "net"
    assert {path.name for path in folder.iterdir() if path.name != "lock" and "last" not in path.name} == {
        "10.88.0.3",
        "fd00:88::3",
    }


def test_gc_keeps_other_networks_on_the_same_bridge(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    other, netns = config("10.88.0.0/24", name="net2", ipMasq=True), scratch.container()
    other["ipam"]["ranges"][0][0]["rangeStart"] = "10.88.0.200"
    result = scratch.add(bridge, other, "c1", netns)
    scratch.gc(bridge, config(ipMasq=True), [])
    scratch.check(bridge, other, "c1", netns, result)


def test_gc_without_information_destroys_nothing(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(ipMasq=True), "c1", netns)
    scratch.gc(bridge, config(ipMasq=True), None)
    scratch.check(bridge, config(ipMasq=True), "c1", netns, result)


def test_gc_tells_two_interfaces_of_one_container_apart(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    scratch.add(bridge, config(), "c1", netns, ifname="net1")
    scratch.gc(bridge, config(), [("c1", "net1")])
    assert look(netns).links == {"lo", "net1"}


@pytest.mark.whole
def test_gc_of_many_needs_few_descriptors(scratch: ScratchCni, bridge: Bridge, config: Make, look: Look) -> None:
    netns, network = scratch.container(), config("10.88.0.0/24")
    for number in range(160):
        scratch.add(bridge, network, f"c{number}", netns, f"eth{number}")
    with room_for_descriptors(80):
        scratch.gc(bridge, network, [])
    assert look(scratch.host_netns).links == {"lo", "br0"}


def test_gc_without_a_bridge_still_frees_addresses(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    scratch.gc(bridge, config(bridge="br9"), [])
    assert not (scratch.folder / "networks" / "net" / "10.88.0.2").exists()


# --- STATUS -------------------------------------------------------------------------------------------------------


def test_status_is_ready_before_the_first_add(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.status(bridge, config())


def test_status_is_not_ready_when_addresses_are_used_up(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    network, netns = config("10.88.0.0/30"), scratch.container()
    scratch.add(bridge, network, "c1", netns)
    with pytest.raises(NotReady, match="0 of 1 addresses free") as refusal:
        scratch.status(bridge, network)
    assert not isinstance(refusal.value, LimitedConnectivity)
    scratch.delete(bridge, network, "c1", netns)
    scratch.status(bridge, network)


def test_status_sets_up_a_bridge_that_is_down(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    change(scratch.host_netns, "br0", Links.set_down)
    scratch.status(bridge, config())
    assert change(scratch.host_netns, "br0", lambda _, link: link.is_up)


def test_status_is_limited_when_the_bridge_cannot_be_mended(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config("10.88.0.0/24"), "c1", scratch.container())
    own, other = ip_interface("10.88.0.1/24"), ip_interface("10.66.0.1/24")
    change(scratch.host_netns, "br0", lambda links, link: links.remove_address(link, own))
    change(scratch.host_netns, "br0", lambda links, link: links.add_address(link, other))
    with pytest.raises(LimitedConnectivity, match=r"already has an IP address different from 10\.88\.0\.1/24"):
        scratch.status(bridge, config("10.88.0.0/24"))


def test_status_is_ready_when_a_bridge_without_containers_is_down(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    scratch.delete(bridge, config(), "c1", netns)
    change(scratch.host_netns, "br0", Links.set_down)
    scratch.status(bridge, config())
    scratch.add(bridge, config(), "c2", netns)


def test_status_is_ready_when_the_runtime_brings_the_ranges(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    network = config(ipam={"type": "host-local"}, capabilities={"ipRanges": True})
    scratch.status(bridge, network)
    ranges = {"runtimeConfig": {"ipRanges": [[{"subnet": "10.88.0.0/24"}]]}}
    scratch.add(bridge, network | ranges, "c1", scratch.container())
    scratch.status(bridge, network)
    with pytest.raises(PluginError, match="no IP ranges specified"):
        scratch.status(bridge, config(ipam={"type": "host-local"}))


def test_status_gives_the_bridge_back_the_address_that_it_lost(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    lost = ip_interface("fd00:88::1/64")
    change(scratch.host_netns, "br0", lambda links, link: links.remove_address(link, lost))
    scratch.status(bridge, config())
    assert lost in change(scratch.host_netns, "br0", lambda links, link: links.addresses(link))
