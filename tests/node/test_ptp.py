"""ptp in scratch namespaces: what an attachment has, and that nothing is left of it."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from tests.node.killed_call import killed_call

from nodeplug import CniDns, CniResult, Exhausted, InvalidRequest, Netns, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links
from nodeplug_net.nftables.masquerade import Masquerade
from nodeplug_net.ptp.plugin import Ptp, PtpConfig

Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]
Clean = Callable[[Netns, set[str]], None]
HOST_END = Attachment("net", "c1", "eth0").host_veth


@pytest.fixture
def ptp(scratch: ScratchCni) -> Iterator[Ptp]:
    plugin = Ptp(PtpConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


def network(*subnets: str, **keys: Any) -> dict[str, Any]:
    ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.88.0.0/24", "fd00:88::/64")]
    routes = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    ipam = {"type": "host-local", "ranges": ranges, "routes": routes if not subnets else []}
    return {"cniVersion": "1.0.0", "name": "net", "type": "nodeplug-ptp", "ipam": ipam, **keys}


def fixed(*addresses: dict[str, str], **keys: Any) -> dict[str, Any]:
    return network(**{"ipam": {"type": "static", "addresses": list(addresses)}, **keys})


def host(scratch: ScratchCni, work: Callable[[Links], Any]) -> Any:
    def run() -> Any:
        with Netlink() as netlink:
            return work(Links(netlink))

    return scratch.on_host(run)


def host_end(scratch: ScratchCni) -> Link:
    found = host(scratch, lambda links: links.get(HOST_END))
    assert isinstance(found, Link)
    return found


def run_ip(scratch: ScratchCni, netns: Netns | None, work: Callable[[Any], Any]) -> None:
    def change() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only what breaks things needs it

        with IPRoute() as route:
            work(route)

    run_in(netns or scratch.host_netns, change)


def test_containers_reach_their_gateway_and_each_other_through_the_host(
    scratch: ScratchCni, ptp: Ptp, ping: Ping
) -> None:
    one, other = scratch.container(), scratch.container()
    scratch.add(ptp, network(), "c1", one)
    result = scratch.add(ptp, network(), "c2", other)
    for ip in result.ips:
        assert ping(one, str(ip.gateway))
        assert ping(one, str(ip.address.ip))
        assert ping(scratch.host_netns, str(ip.address.ip))


def test_the_gateway_alone_is_on_the_link_and_everything_else_behind_it(
    scratch: ScratchCni, ptp: Ptp, look: Look
) -> None:
    netns = scratch.container()
    scratch.add(ptp, network(), "c1", netns)
    assert look(netns).routes == {
        "10.88.0.1/32 via None dev eth0",
        "10.88.0.0/24 via 10.88.0.1 dev eth0",
        "default/0 via 10.88.0.1 dev eth0",
        "fd00:88::1/128 via None dev eth0",
        "fd00:88::/64 via fd00:88::1 dev eth0",
        "default/0 via fd00:88::1 dev eth0",
    }
    outside = look(scratch.host_netns)
    assert outside.addresses == {f"{HOST_END} 10.88.0.1/32", f"{HOST_END} fd00:88::1/128"}
    assert {f"10.88.0.2/32 via None dev {HOST_END}", f"fd00:88::2/128 via None dev {HOST_END}"} <= outside.routes


def test_the_result_names_both_ends(scratch: ScratchCni, ptp: Ptp) -> None:
    netns = scratch.container()
    result = scratch.add(ptp, network(mtu=1400, dns={"nameservers": ["192.0.2.1"]}), "c1", netns)
    assert [(one.name, one.sandbox) for one in result.interfaces] == [(HOST_END, ""), ("eth0", netns.path)]
    assert [ip.interface for ip in result.ips] == [1, 1]
    assert result.dns == CniDns(nameservers=("192.0.2.1",))
    end = host_end(scratch)
    assert (end.mac, end.mtu, end.is_up, end.alias) == (
        result.interfaces[0].mac, 1400, True, "nodeplug net c1 eth0",
    )  # fmt: skip


def test_the_host_asks_for_its_neighbour_at_once(scratch: ScratchCni, ptp: Ptp) -> None:
    scratch.add(ptp, network(), "c1", scratch.container())
    settings = [Path("/proc/sys/net/ipv6/conf", HOST_END, name) for name in ("accept_dad", "accept_ra")]
    assert [scratch.on_host(one.read_text).strip() for one in settings] == ["0", "0"]


def test_a_repeated_add_returns_the_same_and_changes_nothing(scratch: ScratchCni, ptp: Ptp, look: Look) -> None:
    netns = scratch.container()
    first = scratch.add(ptp, network(ipMasq=True), "c1", netns)
    before = look(netns), look(scratch.host_netns)
    assert scratch.add(ptp, network(ipMasq=True), "c1", netns) == first
    assert (look(netns), look(scratch.host_netns)) == before


@pytest.mark.parametrize("keeps_netns", [True, False])
def test_del_leaves_nothing_and_may_be_repeated(
    scratch: ScratchCni, ptp: Ptp, clean: Clean, look: Look, keeps_netns: bool
) -> None:
    netns = scratch.container()
    scratch.add(ptp, network(ipMasq=True), "c1", netns)
    for _ in range(2):
        scratch.delete(ptp, network(ipMasq=True), "c1", netns if keeps_netns else None)
        clean(netns, {"lo"})
    assert {route for route in look(scratch.host_netns).routes if "10.88" in route or "fd00" in route} == set()


def test_the_only_address_of_a_subnet_needs_no_route_of_the_kernels(scratch: ScratchCni, ptp: Ptp, ping: Ping) -> None:
    netns = scratch.container()
    config = fixed(
        {"address": "10.77.0.5/32", "gateway": "10.77.0.1"}, {"address": "fd77::5/128", "gateway": "fd77::1"}
    )
    result = scratch.add(ptp, config, "c1", netns)
    assert ping(netns, "10.77.0.1")
    assert ping(netns, "fd77::1")
    scratch.check(ptp, config, "c1", netns, result)


def test_an_address_that_comes_back_early_belongs_to_its_new_container(
    scratch: ScratchCni, ptp: Ptp, look: Look, ping: Ping
) -> None:
    config = fixed({"address": "10.77.0.5/24", "gateway": "10.77.0.1"}, ipMasq=True)
    scratch.add(ptp, config, "c1", scratch.container())
    netns = scratch.container()
    result = scratch.add(ptp, config, "c2", netns)
    assert ping(scratch.host_netns, "10.77.0.5")
    scratch.delete(ptp, config, "c1", None)
    assert ping(scratch.host_netns, "10.77.0.5")
    scratch.check(ptp, config, "c2", netns, result)


def test_a_network_without_ipam_is_refused_but_ended(scratch: ScratchCni, ptp: Ptp) -> None:
    config = {key: value for key, value in network().items() if key != "ipam"}
    with pytest.raises(InvalidRequest, match="no plugin name provided"):
        scratch.add(ptp, config, "c1", scratch.container())
    with pytest.raises(InvalidRequest, match="no plugin name provided"):
        scratch.status(ptp, config)
    scratch.delete(ptp, config, "c1", None)


def test_an_address_without_a_gateway_is_refused_and_nothing_is_made(
    scratch: ScratchCni, ptp: Ptp, clean: Clean
) -> None:
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match=r"address 10\.77\.0\.5/24 has no gateway of its family"):
        scratch.add(ptp, fixed({"address": "10.77.0.5/24"}), "c1", netns)
    clean(netns, {"lo"})


def test_a_full_range_leaves_nothing(scratch: ScratchCni, ptp: Ptp, clean: Clean) -> None:
    config = network("10.88.0.0/30")
    scratch.add(ptp, config, "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(Exhausted, match="no IP addresses available"):
        scratch.add(ptp, config, "c1", netns)
    clean(netns, {"lo"})
    with pytest.raises(NotReady, match="0 of 1 addresses free"):
        scratch.status(ptp, config)


@pytest.mark.parametrize(
    "route", [{"dst": "10.1.0.0/16", "gw": "172.16.0.1"}, {"dst": "fd99::/64", "gw": "fd98::1"}], ids=["v4", "v6"]
)
def test_a_route_that_leads_nowhere_undoes_everything(
    scratch: ScratchCni, ptp: Ptp, clean: Clean, route: dict[str, str]
) -> None:
    netns, config = scratch.container(), network(ipMasq=True)
    config["ipam"]["routes"] = [route]
    with pytest.raises(PluginError, match="cannot add route"):
        scratch.add(ptp, config, "c1", netns)
    clean(netns, {"lo"})


def test_an_interface_of_that_name_from_elsewhere_is_left_alone(scratch: ScratchCni, ptp: Ptp, clean: Clean) -> None:
    netns = scratch.container()
    run_ip(scratch, netns, lambda route: route.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(InvalidRequest, match=r'^container veth name \("eth0"\) peer provided .* already exists'):
        scratch.add(ptp, network(), "c1", netns)
    clean(netns, {"lo", "eth0", "other0"})


# --- after a crash


def half_an_add(scratch: ScratchCni, netns: Netns) -> None:
    """The pair that a daemon leaves when it is killed right after creating it."""
    peer = {"ifname": "eth0", "net_ns_fd": netns.fd}
    run_ip(scratch, None, lambda route: route.link("add", ifname=HOST_END, kind="veth", peer=peer))


def test_del_removes_the_unlabelled_pair_of_a_killed_add(scratch: ScratchCni, ptp: Ptp, clean: Clean) -> None:
    netns = scratch.container()
    half_an_add(scratch, netns)
    scratch.delete(ptp, network(), "c1", None)
    clean(netns, {"lo"})


def test_add_completes_the_pair_of_a_killed_add(scratch: ScratchCni, ptp: Ptp, ping: Ping) -> None:
    netns = scratch.container()
    half_an_add(scratch, netns)
    result = scratch.add(ptp, network(), "c1", netns)
    scratch.check(ptp, network(), "c1", netns, result)
    assert ping(netns, "10.88.0.1")


def killed_add(scratch: ScratchCni, ptp: Ptp, netns: Netns, after: int) -> bool:
    """Run an ADD that ends after so many messages to the kernel; whether it came that far."""
    return killed_call(lambda: scratch.add(ptp, network(ipMasq=True), "c1", netns), after)


def test_an_add_killed_at_any_message_is_ended_by_del_and_completed_by_add(
    scratch: ScratchCni, ptp: Ptp, clean: Clean
) -> None:
    netns, config = scratch.container(), network(ipMasq=True)
    points = 0
    while killed_add(scratch, ptp, netns, points):
        scratch.delete(ptp, config, "c1", netns)
        clean(netns, {"lo"})
        assert killed_add(scratch, ptp, netns, points)
        result = scratch.add(ptp, config, "c1", netns)
        scratch.check(ptp, config, "c1", netns, result)
        scratch.delete(ptp, config, "c1", None)
        clean(netns, {"lo"})
        points += 1
    assert points > 5


# --- CHECK, GC, STATUS


def link_index(route: Any, name: str) -> int:
    return int(route.link_lookup(ifname=name)[0])


def lose_address(name: str, address: str, prefixlen: int) -> Callable[[Any], Any]:
    return lambda route: route.addr("del", index=link_index(route, name), address=address, prefixlen=prefixlen)


def lose_route(**route: Any) -> Callable[[Any], Any]:
    return lambda ip: ip.route("del", **route)


def change(name: str, **values: str) -> Callable[[Any], Any]:
    return lambda route: route.link("set", index=link_index(route, name), **values)


INSIDE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "down": (change("eth0", state="down"), "eth0 is down"),
    "mac": (change("eth0", address="02:00:00:00:00:09"), "has MAC"),
    "address": (lose_address("eth0", "10.88.0.2", 24), "lost its address 10.88.0.2/24"),
    "gateway-route": (lose_route(dst="10.88.0.1/32", scope=253), "the gateway 10.88.0.1 has no route"),
    "subnet-route": (lose_route(dst="10.88.0.0/24"), "route 10.88.0.0/24 via 10.88.0.1 is missing"),
    "default-route": (lose_route(dst="0.0.0.0/0", family=2, gateway="10.88.0.1"), "route 0.0.0.0/0 via 10.88.0.1"),
}
OUTSIDE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "down": (change(HOST_END, state="down"), f"{HOST_END} is down"),
    "address": (lose_address(HOST_END, "10.88.0.1", 32), f"{HOST_END} lost its address 10.88.0.1/32"),
    "route": (lose_route(dst="10.88.0.2/32", scope=254), "has no route to 10.88.0.2"),
    "link": (lambda route: route.link("del", index=link_index(route, HOST_END)), "eth0 does not exist"),
}


@pytest.mark.parametrize(("inside", "what"), [*((True, what) for what in INSIDE), *((False, what) for what in OUTSIDE)])
def test_check_names_what_is_lost(scratch: ScratchCni, ptp: Ptp, inside: bool, what: str) -> None:
    work, said = (INSIDE if inside else OUTSIDE)[what]
    netns = scratch.container()
    result = scratch.add(ptp, network(), "c1", netns)
    scratch.check(ptp, network(), "c1", netns, result)
    run_ip(scratch, netns if inside else None, work)
    with pytest.raises(PluginError, match=said):
        scratch.check(ptp, network(), "c1", netns, result)


def test_check_names_a_lost_reservation_and_lost_masquerading(scratch: ScratchCni, ptp: Ptp) -> None:
    netns, config = scratch.container(), network(ipMasq=True)
    result = scratch.add(ptp, config, "c1", netns)

    def end() -> None:
        with Netlink(12) as netlink:
            masquerade = Masquerade(netlink)
            masquerade.remove(masquerade.owned("nodeplug net c1 eth0"))

    scratch.on_host(end)
    with pytest.raises(PluginError, match=r"address 10\.88\.0\.2 is not masqueraded"):
        scratch.check(ptp, config, "c1", netns, result)
    (scratch.folder / "networks" / "net" / "10.88.0.2").unlink()
    with pytest.raises(PluginError, match=r"address 10\.88\.0\.2 is not reserved"):
        scratch.check(ptp, network(), "c1", netns, result)


def test_check_tells_a_changed_gateway_from_the_configured_one(scratch: ScratchCni, ptp: Ptp) -> None:
    config = fixed({"address": "10.77.0.5/24", "gateway": "10.77.0.1"})
    netns = scratch.container()
    result = scratch.add(ptp, config, "c1", netns)
    moved: CniResult = replace(result, ips=(replace(result.ips[0], gateway=ip_address("10.77.0.9")),))
    with pytest.raises(PluginError, match=r"the gateway 10\.77\.0\.9 has no route"):
        scratch.check(ptp, config, "c1", netns, moved)


def test_gc_ends_what_is_not_valid_and_keeps_the_rest(scratch: ScratchCni, ptp: Ptp, clean: Clean, ping: Ping) -> None:
    netns, other, config = scratch.container(), scratch.container(), network(ipMasq=True)
    scratch.add(ptp, config, "c1", netns)
    result = scratch.add(ptp, config, "c2", other)
    scratch.gc(ptp, config, None)
    assert ping(netns, "10.88.0.1")
    scratch.gc(ptp, config, [("c2", "eth0")])
    clean(netns, {"lo"})
    scratch.check(ptp, config, "c2", other, result)


def test_status_restores_forwarding_and_masquerading_of_containers(
    scratch: ScratchCni, ptp: Ptp, caplog: pytest.LogCaptureFixture
) -> None:
    netns, config = scratch.container(), network(ipMasq=True)
    result = scratch.add(ptp, config, "c1", netns)

    def lose() -> None:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")
        with Netlink(12) as netlink:
            masquerade = Masquerade(netlink)
            masquerade.remove(masquerade.entries(""))
            masquerade.prune()

    scratch.on_host(lose)
    with caplog.at_level(logging.WARNING):
        scratch.status(ptp, config)
    assert "the host forwards again" in caplog.text
    assert "the rule is restored" in caplog.text
    assert scratch.on_host(lambda: Path("/proc/sys/net/ipv4/ip_forward").read_text().strip()) == "1"
    scratch.check(ptp, config, "c1", netns, result)


def test_status_sets_links_up_again(scratch: ScratchCni, ptp: Ptp) -> None:
    scratch.add(ptp, network(), "c1", scratch.container())
    scratch.status(ptp, network())
    run_ip(scratch, None, lambda r: r.link("set", index=r.link_lookup(ifname=HOST_END)[0], state="down"))
    scratch.status(ptp, network())
    scratch.on_host(ptp.health)
    assert host_end(scratch).is_up
