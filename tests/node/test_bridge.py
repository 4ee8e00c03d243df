import json
import subprocess
from collections.abc import Callable
from ipaddress import IPv4Network, ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest
from tests.node.bridged import files, link, present
from tests.programs import need

from nodeplug import CniDns, CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

Make = Callable[..., dict[str, Any]]
Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]


def sysctl(netns: Netns, path: str) -> str:
    return run_in(netns, lambda: Path("/proc/sys/net", path).read_text().strip())


def addresses(result: CniResult) -> list[str]:
    return [str(ip.address) for ip in result.ips]


def test_two_containers_reach_each_other_and_the_gateway(
    scratch: ScratchCni, bridge: Bridge, config: Make, ping: Ping
) -> None:
    one, other = scratch.container(), scratch.container()
    scratch.add(bridge, config(), "c1", one)
    result = scratch.add(bridge, config(), "c2", other)
    for ip in result.ips:
        assert ping(one, str(ip.address.ip))
        assert ping(one, str(ip.gateway))


@pytest.mark.parametrize(
    ("subnets", "expected"),
    [
        (("10.88.0.0/24",), ["10.88.0.2/24"]),
        (("fd00:88::/64",), ["fd00:88::2/64"]),
        (("10.88.0.0/24", "fd00:88::/64"), ["10.88.0.2/24", "fd00:88::2/64"]),
        (("10.88.0.0/24", "10.99.0.0/24"), ["10.88.0.2/24", "10.99.0.2/24"]),
    ],
)
def test_the_kernel_has_what_the_result_says(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look, subnets: tuple[str, ...], expected: list[str]
) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(*subnets), "c1", netns)
    assert addresses(result) == expected
    seen = look(netns)
    assert {f"eth0 {address}" for address in expected} <= seen.addresses
    defaults = {str(route.gw) for route in result.routes}
    assert {route for route in seen.routes if "default" in route} == {f"default/0 via {gw} dev eth0" for gw in defaults}
    assert len(defaults) == len({ip.address.version for ip in result.ips})
    for ip in result.ips:
        assert f"br0 {ip.gateway}/{ip.address.network.prefixlen}" in look(scratch.host_netns).addresses


def test_the_result_names_bridge_host_veth_and_container_interface(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(), "c1", netns)
    names = ["br0", Attachment("net", "c1", "eth0").host_veth, "eth0"]
    assert [one.name for one in result.interfaces] == names
    assert [one.sandbox for one in result.interfaces] == ["", "", netns.path]
    assert [ip.interface for ip in result.ips] == [2, 2]
    macs = [present(scratch.host_netns, names[0]).mac, present(scratch.host_netns, names[1]).mac]
    assert [one.mac for one in result.interfaces] == [*macs, present(netns, "eth0").mac]


def test_the_host_veth_is_a_labelled_port_that_is_up(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    port = present(scratch.host_netns, Attachment("net", "c1", "eth0").host_veth)
    assert port.is_up
    assert port.alias == "nodeplug net c1 eth0"
    assert port.master == present(scratch.host_netns, "br0").index
    assert sysctl(scratch.host_netns, f"ipv6/conf/{port.name}/accept_ra") == "0"


def test_both_ends_of_the_pair_are_made_with_one_queue(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    container = scratch.container()
    scratch.add(bridge, config(), "c1", container)

    need("ip")

    def queues(ifname: str) -> list[int]:
        told = subprocess.run(["ip", "-j", "-d", "link", "show", ifname], capture_output=True, check=True).stdout
        found: dict[str, int] = json.loads(told)[0]
        return [found[key] for key in ("num_tx_queues", "num_rx_queues")]

    assert run_in(container, lambda: queues("eth0")) == [1, 1]
    name = Attachment("net", "c1", "eth0").host_veth
    assert run_in(scratch.host_netns, lambda: queues(name)) == [1, 1]


def test_the_host_asks_for_neighbours_on_a_new_bridge_at_once(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    assert sysctl(scratch.host_netns, "ipv6/conf/br0/accept_dad") == "0"
    assert sysctl(scratch.host_netns, "ipv6/conf/br0/accept_ra") == "0"


def test_the_settings_of_an_interface_without_ipam_are_the_containers_own(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    names = ("ipv6/conf/default/accept_dad", "ipv4/conf/default/arp_notify")
    before = [sysctl(netns, name) for name in names]
    scratch.add(bridge, {key: value for key, value in config().items() if key != "ipam"}, "c1", netns)
    assert [sysctl(netns, name.replace("default", "eth0")) for name in names] == before
    assert present(netns, "eth0").is_up


def test_the_container_interface_needs_no_duplicate_address_detection(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    assert sysctl(netns, "ipv6/conf/eth0/accept_dad") == "0"
    assert sysctl(netns, "ipv6/conf/eth0/keep_addr_on_down") == "1"
    assert sysctl(netns, "ipv4/conf/eth0/arp_notify") == "1"

    def tentative() -> dict[str, bool]:
        lines = run_in(netns, lambda: Path("/proc/thread-self/net/if_inet6").read_text()).splitlines()
        return {line.split()[3]: bool(int(line.split()[4], 16) & 0x40) for line in lines if line.endswith("eth0")}

    link_local, own = "20", "00"
    assert tentative()[own] is False
    # The kernel's own address waits for a worker of the kernel's, which then skips the detection.
    until(lambda: tentative().get(link_local) is False)


def test_forwarding_is_enabled_for_a_gateway_alone(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(isDefaultGateway=False), "c1", scratch.container())
    assert sysctl(scratch.host_netns, "ipv4/ip_forward") == "0"
    assert present(scratch.host_netns, "br0").is_up
    scratch.add(bridge, config("10.88.0.0/24", isDefaultGateway=False, isGateway=True), "c2", scratch.container())
    assert sysctl(scratch.host_netns, "ipv4/ip_forward") == "1"
    assert sysctl(scratch.host_netns, "ipv6/conf/all/forwarding") == "0"


def test_a_gateway_without_default_gateway_adds_no_default_route(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(isDefaultGateway=False, isGateway=True), "c1", netns)
    assert result.routes == ()
    assert not any(route.startswith("default") for route in look(netns).routes)


def test_routes_of_ipam_go_through_the_gateway_unless_they_name_one(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns, network = scratch.container(), config("10.88.0.0/24", isDefaultGateway=False)
    network["ipam"]["routes"] = [{"dst": "10.1.0.0/16"}, {"dst": "10.2.0.0/16", "gw": "10.88.0.77"}]
    scratch.add(bridge, network, "c1", netns)
    routes = look(netns).routes
    assert {"10.1.0.0/16 via 10.88.0.1 dev eth0", "10.2.0.0/16 via 10.88.0.77 dev eth0"} <= routes


def test_a_default_route_of_ipam_is_not_added_twice(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns, network = scratch.container(), config("10.88.0.0/24")
    network["ipam"]["routes"] = [{"dst": "0.0.0.0/0", "gw": "10.88.0.9"}]
    result = scratch.add(bridge, network, "c1", netns)
    assert [(route.dst, route.gw) for route in result.routes] == [(IPv4Network("0.0.0.0/0"), ip_address("10.88.0.9"))]
    assert {route for route in look(netns).routes if route.startswith("default")} == {
        "default/0 via 10.88.0.9 dev eth0"
    }


def test_dns_of_the_network_overrides_that_of_ipam(
    scratch: ScratchCni, bridge: Bridge, config: Make, tmp_path: Path
) -> None:
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("nameserver 192.0.2.9\n")
    network = config("10.88.0.0/24")
    network["ipam"]["resolvConf"] = str(resolv)
    assert scratch.add(bridge, network, "c1", scratch.container()).dns == CniDns(nameservers=("192.0.2.9",))
    network["dns"] = {"nameservers": []}
    assert scratch.add(bridge, network, "c3", scratch.container()).dns == CniDns()
    network["dns"] = {"nameservers": ["192.0.2.1"], "search": ["example"]}
    assert scratch.add(bridge, network, "c2", scratch.container()).dns == CniDns(
        nameservers=("192.0.2.1",), search=("example",)
    )


def test_a_network_without_ipam_is_a_switch(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns, network = scratch.container(), config(isDefaultGateway=False)
    del network["ipam"]
    result = scratch.add(bridge, network, "c1", netns)
    assert (result.ips, result.routes) == ((), ())
    assert present(netns, "eth0").is_up
    scratch.check(bridge, network, "c1", netns, result)
    scratch.status(bridge, network)
    scratch.delete(bridge, network, "c1", netns)
    assert link(netns, "eth0") is None


def test_mtu_is_set_on_bridge_and_both_ends(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(mtu=1400), "c1", netns)
    assert [one.mtu for one in result.interfaces] == [1400, 1400, 1400]
    assert present(netns, "eth0").mtu == 1400


def test_hairpin_mode_lets_a_container_reach_itself_through_the_bridge(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config(hairpinMode=True), "c1", scratch.container())
    assert present(scratch.host_netns, Attachment("net", "c1", "eth0").host_veth).hairpin
    scratch.add(bridge, config(), "c2", scratch.container())
    assert not present(scratch.host_netns, Attachment("net", "c2", "eth0").host_veth).hairpin


def test_promiscuous_mode_is_set_on_the_bridge(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    assert not present(scratch.host_netns, "br0").is_promiscuous
    scratch.add(bridge, config(promiscMode=True), "c2", scratch.container())
    assert present(scratch.host_netns, "br0").is_promiscuous


def test_a_mac_is_given_to_the_container_interface(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(runtimeConfig={"mac": "02:00:00:00:00:77"}), "c1", netns)
    assert result.interfaces[2].mac == "02:00:00:00:00:77"
    assert present(netns, "eth0").mac == "02:00:00:00:00:77"


def test_a_requested_address_is_given_with_an_unknown_cni_arg_beside_it(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    args = {"IP": "10.88.0.77", "MAC": "02:00:00:00:00:77"}
    result = scratch.add(bridge, config("10.88.0.0/24"), "c1", scratch.container(), args=args)
    assert addresses(result) == ["10.88.0.77/24"]


def test_the_bridge_keeps_its_mac_when_ports_come_and_go(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    results = []
    for name in ("c1", "c2", "c3"):
        netns = scratch.container()
        results.append(scratch.add(bridge, config(), name, netns))
        scratch.delete(bridge, config(), name, netns)
    assert len({result.interfaces[0].mac for result in results}) == 1
    assert present(scratch.host_netns, "br0").mac == results[0].interfaces[0].mac


def test_a_repeated_add_answers_the_same_result(scratch: ScratchCni, bridge: Bridge, config: Make, look: Look) -> None:
    netns = scratch.container()
    first = scratch.add(bridge, config(ipMasq=True), "c1", netns)
    before = look(netns), look(scratch.host_netns), files(scratch)
    assert scratch.add(bridge, config(ipMasq=True), "c1", netns) == first
    assert (look(netns), look(scratch.host_netns), files(scratch)) == before


def test_a_repeated_add_repairs_what_was_lost(scratch: ScratchCni, bridge: Bridge, config: Make, ping: Ping) -> None:
    netns = scratch.container()
    first = scratch.add(bridge, config(), "c1", netns)

    def damage() -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            eth0 = links.get("eth0")
            assert eth0 is not None
            links.set_down(eth0)
            links.remove_address(eth0, ip_interface("10.88.0.2/24"))

    def release_port() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  damage is done with other means than the plugin's own

        with IPRoute() as route:
            route.link("set", index=route.link_lookup(ifname=Attachment("net", "c1", "eth0").host_veth)[0], master=0)

    run_in(netns, damage)
    scratch.on_host(release_port)
    assert scratch.add(bridge, config(), "c1", netns) == first
    assert ping(netns, "10.88.0.1")


def test_an_add_after_the_namespace_was_made_anew_moves_the_attachment_there(
    scratch: ScratchCni, bridge: Bridge, config: Make, ping: Ping
) -> None:
    old, new = scratch.container(), scratch.container()
    first = scratch.add(bridge, config(), "c1", old)
    second = scratch.add(bridge, config(), "c1", new)
    assert addresses(second) == addresses(first)
    assert link(old, "eth0") is None
    assert ping(new, "10.88.0.1")


def test_one_of_two_v4_gateways_can_be_restored(scratch: ScratchCni, bridge: Bridge, config: Make, look: Look) -> None:
    network = config("10.88.0.0/24", "10.99.0.0/24")
    scratch.add(bridge, network, "c1", scratch.container())

    def damage() -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            br0 = links.get("br0")
            assert br0 is not None
            links.remove_address(br0, ip_interface("10.99.0.1/24"))

    scratch.on_host(damage)
    scratch.add(bridge, network, "c2", scratch.container())
    assert {"br0 10.88.0.1/24", "br0 10.99.0.1/24"} <= look(scratch.host_netns).addresses


def test_two_interfaces_of_one_container_are_two_attachments(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    scratch.add(bridge, config("10.88.0.0/24"), "c1", netns)
    second = scratch.add(bridge, config("10.88.0.0/24"), "c1", netns, ifname="net1")
    assert addresses(second) == ["10.88.0.3/24"]
    scratch.delete(bridge, config("10.88.0.0/24"), "c1", netns)
    assert link(netns, "eth0") is None
    assert present(netns, "net1").is_up
    assert files(scratch) == {"10.88.0.3"}


def test_host_work_happens_in_the_namespace_of_the_caller(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(), "c1", scratch.container())
    assert link(scratch.host_netns, "br0") is not None
    here = Netns.current()
    assert link(here, Attachment("net", "c1", "eth0").host_veth) is None
    here.close()
