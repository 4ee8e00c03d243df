"""Leases of a real server: dnsmasq."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.node.dhcp.lab import Place

from nodeplug import Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.dhcp.plugin import Dhcp, DhcpPluginConfig
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

pytestmark = pytest.mark.usefixtures("dnsmasq")
Pod = Callable[[], Netns]


def network(**ipam: Any) -> dict[str, Any]:
    return {
        "cniVersion": "1.1.0",
        "name": "net",
        "type": "x",
        "bridge": "br0",
        "ipam": {"type": "nodeplug-dhcp", **ipam},
    }


def records(scratch: ScratchCni) -> list[str]:
    return sorted(path.name for path in (scratch.host.run_dir / "leases").glob("*.json"))


def test_an_add_gets_a_lease_and_del_gives_it_back(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    netns = pod()
    with place.dnsmasq() as server:
        result = scratch.add(plugin, network(), "c1", netns)
        (ip,) = result.ips
        assert (str(ip.address.network), str(ip.gateway)) == ("10.99.0.0/24", "10.99.0.1")
        assert [(str(one.dst), str(one.gw)) for one in result.routes] == [("0.0.0.0/0", "10.99.0.1")]
        assert server.leases() == [str(ip.address.ip)]
        scratch.check(plugin, network(), "c1", netns, result)
        scratch.status(plugin, network())
        assert scratch.add(plugin, network(), "c1", netns) == result
        assert server.said("DHCPACK") == 1
        scratch.delete(plugin, network(), "c1", netns)
        until(lambda: server.leases() == [], found=server.log)
    assert records(scratch) == []
    scratch.delete(plugin, network(), "c1", netns)


def test_two_containers_have_two_addresses(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    with place.dnsmasq() as server:
        found = [scratch.add(plugin, network(), name, pod()).ips[0].address for name in ("c1", "c2")]
        assert sorted(server.leases()) == sorted(str(one.ip) for one in found)
        assert len(set(found)) == 2


def test_the_server_knows_the_container_by_its_names(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    identifier = (b"\0" + b"c1/net/eth0").hex(":")
    with place.dnsmasq(f"--dhcp-host=id:{identifier},10.99.0.77") as server:
        result = scratch.add(plugin, network(), "c1", pod())
        assert str(result.ips[0].address) == "10.99.0.77/24", server.log()


def test_routes_of_the_server_are_those_of_the_result(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    wish = network(request=[{"option": "121"}, {"option": "33"}], priority=7)
    with place.dnsmasq(
        "--dhcp-option=121,10.1.0.0/16,10.99.0.9,10.2.3.0/24,0.0.0.0", "--dhcp-option=33,10.8.0.0,10.99.0.8"
    ):
        result = scratch.add(plugin, wish, "c1", pod())
    assert [(str(one.dst), str(one.gw), one.scope, one.priority) for one in result.routes] == [
        ("10.1.0.0/16", "10.99.0.9", None, 7),
        ("10.2.3.0/24", "0.0.0.0", 253, 7),
    ]


def test_what_a_network_provides_reaches_the_server(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    given = [{"option": "host-name", "value": "x"}, {"option": "12", "fromArg": "K8S_POD_NAME"}]
    with place.dnsmasq() as server:
        scratch.add(plugin, network(provide=given), "c1", pod(), args_text="IgnoreUnknown=1;K8S_POD_NAME=web-0")
        assert "client provides name: web-0" in server.log()


def test_a_namespace_that_is_gone_gives_its_address_back_through_the_bridge(
    scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod
) -> None:
    with place.dnsmasq() as server:
        netns = pod()
        scratch.add(plugin, network(), "c1", netns)
        drop(netns)
        scratch.delete(plugin, network(), "c1")
        until(lambda: server.leases() == [], found=server.log)


def drop(netns: Netns) -> None:
    """Take the interface away, as the end of a namespace does."""

    def delete() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415

        with IPRoute() as route:
            route.link("del", index=route.link_lookup(ifname="eth0")[0])

    run_in(netns, delete)


def test_gc_gives_back_what_is_not_valid(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    with place.dnsmasq() as server:
        kept = scratch.add(plugin, network(), "c1", pod())
        scratch.add(plugin, network(), "c2", pod())
        scratch.gc(plugin, network(), None)
        assert len(records(scratch)) == 2
        scratch.gc(plugin, network(), [("c1", "eth0")])
        until(lambda: server.leases() == [str(kept.ips[0].address.ip)], found=server.log)
    assert len(records(scratch)) == 1


def test_a_pool_that_is_used_up_is_an_error_that_leaves_nothing(scratch: ScratchCni, place: Place, pod: Pod) -> None:
    plugin = Dhcp(DhcpPluginConfig(timeout=2), scratch.host)
    scratch.on_host(plugin.start)
    with place.dnsmasq() as server:
        for number in range(4):
            scratch.add(plugin, network(), f"c{number}", pod())
        with pytest.raises(PluginError, match="no more tries"):
            scratch.add(plugin, network(), "c4", pod())
        assert len(server.leases()) == len(records(scratch)) == 4
    plugin.stop()


def test_the_interface_is_brought_up(scratch: ScratchCni, plugin: Dhcp, place: Place, pod: Pod) -> None:
    def is_up() -> bool:
        with Netlink() as netlink:
            link = Links(netlink).get("eth0")
        return link is not None and link.is_up

    netns = pod()
    assert not run_in(netns, is_up)
    with place.dnsmasq():
        scratch.add(plugin, network(), "c1", netns)
    assert run_in(netns, is_up)
