"""macvlan in scratch namespaces: what an attachment has, and that nothing is left of it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.killed_call import killed_call

from nodeplug import CniDns, Exhausted, InvalidEnvironment, InvalidRequest, Netns, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.macvlan.plugin import Macvlan, MacvlanConfig
from nodeplug_net.macvlan.verbs import _mode_of
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links

Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]
MADE = Attachment("net", "c1", "eth0").host_veth


@pytest.fixture
def macvlan(scratch: ScratchCni) -> Macvlan:
    """The plugin, on a host whose interface up0 leads to one that answers, up1."""

    def wire(route: Any) -> None:
        route.link("add", ifname="up0", kind="veth", peer="up1", mtu=1500)
        for name in ("up0", "up1"):
            route.link("set", index=route.link_lookup(ifname=name)[0], state="up")

    run_ip(scratch.host_netns, wire)
    plugin = Macvlan(MacvlanConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(plugin.start)
    return plugin


def run_ip(netns: Netns, work: Callable[[Any], Any]) -> None:
    def change() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only what breaks things needs it

        with IPRoute() as route:
            work(route)

    run_in(netns, change)


def network(*subnets: str, **keys: Any) -> dict[str, Any]:
    ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.88.0.0/24",)]
    config = {"cniVersion": "1.0.0", "name": "net", "type": "nodeplug-macvlan", "master": "up0"}
    return {**config, "ipam": {"type": "host-local", "ranges": ranges}, **keys}


def flat(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in network(**keys).items() if key != "ipam"}


def link(netns: Netns, name: str = "eth0") -> Link:
    def find() -> Link | None:
        with Netlink() as netlink:
            return Links(netlink).get(name)

    found = run_in(netns, find)
    assert found is not None
    return found


def held(scratch: ScratchCni) -> list[str]:
    folder = scratch.folder / "networks" / "net"
    return [path.name for path in folder.glob("*") if path.name[0].isdigit()]


def test_two_containers_reach_each_other(scratch: ScratchCni, macvlan: Macvlan, ping: Ping) -> None:
    one, other = scratch.container(), scratch.container()
    scratch.add(macvlan, network(), "c1", one)
    scratch.add(macvlan, network(), "c2", other)
    assert ping(one, "10.88.0.3")
    assert ping(other, "10.88.0.2")


@pytest.mark.parametrize("mode", ["", "bridge", "private", "vepa", "passthru"])
def test_the_kernel_has_what_is_asked(scratch: ScratchCni, macvlan: Macvlan, mode: str) -> None:
    netns = scratch.container()
    config = network(mode=mode, mtu=1400, bcqueuelen=500, mac="02:00:00:00:00:05", dns={"domain": "a"})
    result = scratch.add(macvlan, config, "c1", netns)
    made = link(netns)
    # In passthru the kernel takes the address of the interface below.
    mac = link(scratch.host_netns, "up0").mac if mode == "passthru" else "02:00:00:00:00:05"
    assert (made.kind, _mode_of(made), made.mtu, made.is_up) == ("macvlan", mode or "bridge", 1400, True)
    assert made.mac == mac
    assert [(one.name, one.mac, one.sandbox) for one in result.interfaces] == [("eth0", made.mac, netns.path)]
    assert [ip.interface for ip in result.ips] == [0]
    assert result.dns == CniDns(domain="a")
    scratch.check(macvlan, config, "c1", netns, result)


def test_the_runtimes_address_comes_before_that_of_the_arguments(scratch: ScratchCni, macvlan: Macvlan) -> None:
    places: dict[str, Any] = {"mac": "02:00:00:00:00:01"}
    scratch.add(macvlan, flat(**places), "c1", one := scratch.container(), args={"MAC": "02:00:00:00:00:02"})
    places["runtimeConfig"] = {"mac": "02:00:00:00:00:03"}
    scratch.add(macvlan, flat(**places), "c2", other := scratch.container(), args={"MAC": "02:00:00:00:00:02"})
    assert (link(one).mac, link(other).mac) == ("02:00:00:00:00:02", "02:00:00:00:00:03")


def test_without_a_master_the_default_route_names_it(scratch: ScratchCni, macvlan: Macvlan) -> None:
    config = {key: value for key, value in flat().items() if key != "master"}
    with pytest.raises(InvalidRequest, match="no default route interface found"):
        scratch.add(macvlan, config, "c1", scratch.container())

    def route(ip: Any) -> None:
        up1 = ip.link_lookup(ifname="up1")[0]
        ip.addr("add", index=up1, address="192.0.2.1", prefixlen=24)
        ip.route("add", dst="0.0.0.0/0", gateway="192.0.2.9")

    run_ip(scratch.host_netns, route)
    scratch.add(macvlan, config, "c1", netns := scratch.container())
    assert link(netns).peer == link(scratch.host_netns, "up1").index


def test_a_master_may_be_in_the_container(scratch: ScratchCni, macvlan: Macvlan) -> None:
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="own0", kind="veth", peer="own1"))
    config = flat(master="own0", linkInContainer=True)
    result = scratch.add(macvlan, config, "c1", netns)
    assert link(netns).peer == link(netns, "own0").index
    scratch.check(macvlan, config, "c1", netns, result)


def test_a_repeated_add_returns_the_same(scratch: ScratchCni, macvlan: Macvlan, look: Look) -> None:
    netns = scratch.container()
    first = scratch.add(macvlan, network(), "c1", netns)
    before = look(netns)
    assert scratch.add(macvlan, network(), "c1", netns) == first
    assert look(netns) == before


@pytest.mark.parametrize("config", [network(), flat()], ids=["addresses", "none"])
def test_del_leaves_nothing_and_may_be_repeated(
    scratch: ScratchCni, macvlan: Macvlan, look: Look, config: dict[str, Any]
) -> None:
    netns = scratch.container()
    scratch.add(macvlan, config, "c1", netns)
    for _ in range(2):
        scratch.delete(macvlan, config, "c1", netns)
        assert (look(netns).links, held(scratch)) == ({"lo"}, [])


def test_del_without_a_namespace_releases_the_addresses(scratch: ScratchCni, macvlan: Macvlan) -> None:
    scratch.add(macvlan, network(), "c1", scratch.container())
    scratch.delete(macvlan, network(), "c1", None)
    assert held(scratch) == []


@pytest.mark.whole
def test_ipv6_addresses_are_asked_about_on_the_wire(scratch: ScratchCni, macvlan: Macvlan) -> None:
    static = {"type": "static", "addresses": [{"address": "fd00:88::5/64"}]}
    scratch.add(macvlan, network(ipam=static), "c1", scratch.container())
    netns = scratch.container()
    with pytest.raises(PluginError, match=r"has address fd00:88::5 in DADFAILED state"):
        scratch.add(macvlan, network(ipam=static), "c2", netns)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"master": "nope"}, "Link not found"),
        ({"mtu": 9000}, r"invalid MTU 9000, must be \[0, master MTU\(1500\)\]"),
        ({"mtu": -1}, r"invalid MTU -1, must be"),
        ({"mode": "x"}, 'unknown macvlan mode: "x"'),
        ({"mac": "x"}, "invalid args x for MAC addr: address x: invalid MAC address"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    scratch: ScratchCni, macvlan: Macvlan, look: Look, keys: dict[str, Any], said: str
) -> None:
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match=said):
        scratch.add(macvlan, network(**keys), "c1", netns)
    assert (look(netns).links, held(scratch)) == ({"lo"}, [])


def test_what_the_kernel_refuses_is_said_and_nothing_is_made(scratch: ScratchCni, macvlan: Macvlan, look: Look) -> None:
    scratch.add(macvlan, flat(mode="passthru"), "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(PluginError, match=r"failed to create macvlan: .*invalid argument"):
        scratch.add(macvlan, network(mode="passthru"), "c1", netns)
    assert (look(netns).links, held(scratch)) == ({"lo"}, [])


def test_malformed_arguments_are_refused(scratch: ScratchCni, macvlan: Macvlan) -> None:
    with pytest.raises(InvalidEnvironment, match="unknown args"):
        scratch.add(macvlan, network(), "c1", scratch.container(), args_text="A=1")


def test_a_full_range_leaves_nothing(scratch: ScratchCni, macvlan: Macvlan, look: Look) -> None:
    config = network("10.88.0.0/30")
    scratch.add(macvlan, config, "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(Exhausted, match="no IP addresses available"):
        scratch.add(macvlan, config, "c1", netns)
    assert look(netns).links == {"lo"}
    with pytest.raises(NotReady, match="0 of 1 addresses free"):
        scratch.status(macvlan, config)


def test_an_interface_of_that_name_from_elsewhere_is_left_alone(
    scratch: ScratchCni, macvlan: Macvlan, look: Look
) -> None:
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(InvalidRequest, match='failed to rename macvlan to "eth0": file exists'):
        scratch.add(macvlan, network(), "c1", netns)
    scratch.delete(macvlan, network(), "c1", netns)
    assert (look(netns).links, held(scratch)) == ({"lo", "eth0", "other0"}, [])


def test_a_name_that_the_host_has_too_is_free_in_the_container(scratch: ScratchCni, macvlan: Macvlan) -> None:
    netns = scratch.container()
    scratch.add(macvlan, flat(), "c1", netns, ifname="up1")
    assert link(netns, "up1").kind == "macvlan"


def killed_add(scratch: ScratchCni, macvlan: Macvlan, netns: Netns, after: int) -> bool:
    """Run an ADD that ends after so many messages to the kernel; whether it came that far."""
    return killed_call(lambda: scratch.add(macvlan, network(), "c1", netns), after)


def test_an_add_killed_at_any_message_is_ended_by_del_and_completed_by_add(
    scratch: ScratchCni, macvlan: Macvlan, look: Look
) -> None:
    netns, points = scratch.container(), 0
    while killed_add(scratch, macvlan, netns, points):
        scratch.delete(macvlan, network(), "c1", netns)
        assert (look(netns).links, held(scratch)) == ({"lo"}, [])
        assert killed_add(scratch, macvlan, netns, points)
        result = scratch.add(macvlan, network(), "c1", netns)
        scratch.check(macvlan, network(), "c1", netns, result)
        assert look(netns).links == {"lo", "eth0"}
        scratch.delete(macvlan, network(), "c1", netns)
        assert (look(netns).links, held(scratch)) == ({"lo"}, [])
        points += 1
    assert points > 4


# --- CHECK, GC, STATUS


def test_check_names_what_is_lost(scratch: ScratchCni, macvlan: Macvlan) -> None:
    netns, config = scratch.container(), network()
    result = scratch.add(macvlan, config, "c1", netns)
    with pytest.raises(PluginError, match="mode bridge does not match expected value: vepa"):
        scratch.check(macvlan, network(mode="vepa"), "c1", netns, result)
    with pytest.raises(InvalidRequest, match="Link not found"):
        scratch.check(macvlan, network(master="nope"), "c1", netns, result)
    index = link(netns).index
    run_ip(netns, lambda ip: ip.addr("del", index=index, address="10.88.0.2", prefixlen=24))
    with pytest.raises(PluginError, match=r"lost its address 10\.88\.0\.2/24"):
        scratch.check(macvlan, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("set", index=index, state="down"))
    with pytest.raises(PluginError, match="eth0 is down"):
        scratch.check(macvlan, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("del", index=index))
    with pytest.raises(PluginError, match="eth0 does not exist"):
        scratch.check(macvlan, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(PluginError, match="eth0 is veth, not macvlan"):
        scratch.check(macvlan, config, "c1", netns, result)


def test_gc_releases_what_is_not_valid(scratch: ScratchCni, macvlan: Macvlan) -> None:
    scratch.add(macvlan, network(), "c1", scratch.container())
    scratch.add(macvlan, network(), "c2", scratch.container())
    scratch.gc(macvlan, network(), None)
    assert len(held(scratch)) == 2
    scratch.gc(macvlan, network(), [("c2", "eth0")])
    assert held(scratch) == ["10.88.0.3"]


def test_status_reports_an_interface_below_that_is_missing_or_down(scratch: ScratchCni, macvlan: Macvlan) -> None:
    scratch.status(macvlan, network())
    with pytest.raises(NotReady, match="Link not found"):
        scratch.status(macvlan, network(master="nope"))
    run_ip(scratch.host_netns, lambda ip: ip.link("set", index=ip.link_lookup(ifname="up0")[0], state="down"))
    with pytest.raises(NotReady, match="interface up0 is down"):
        scratch.status(macvlan, network())


def test_settings_for_neighbours_come_with_addresses_alone(scratch: ScratchCni, macvlan: Macvlan) -> None:
    def settings(netns: Netns) -> list[str]:
        names = ("ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify")
        return run_in(netns, lambda: [Path("/proc/sys/net", name).read_text().strip() for name in names])

    one, other = scratch.container(), scratch.container()
    scratch.add(macvlan, network(), "c1", one)
    scratch.add(macvlan, flat(), "c2", other)
    assert (settings(one), settings(other)) == (["1", "1"], ["0", "0"])
