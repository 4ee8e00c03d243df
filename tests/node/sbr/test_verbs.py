"""Which rules and routes a container has for the addresses of one interface."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest
from tests.node.sbr.lab import FOUR, SIX, Pod, conf, result

from nodeplug import CniCheck, CniResult, CniRoute, InvalidRequest, PluginError
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.comparison import inside_differences
from nodeplug_net.netlink.links import links_in
from nodeplug_net.sbr.plugin import Sbr

OTHERS = ["10.7.0.0/24 - eth0", "default 10.7.0.1 eth0", "default fd07::1 eth0", "fd07::/64 - eth0"]
FIRST = ["10.9.0.0/24 - net1", "192.0.2.0/24 10.9.0.9 net1", "198.51.100.0/24 - net1", "default 10.9.0.1 net1"]
SECOND = ["default fd09::1 net1", "fd09::/64 - net1"]


def way(pod: Pod, target: str, source: str) -> str:
    return pod.run("route", "get", target, "from", source)


def test_each_address_gets_a_rule_and_a_table_with_the_routes_of_the_interface(pod: Pod) -> None:
    assert pod.add() == pod.before
    assert pod.rules() == {"10.9.0.2": "100", "fd09::2": "101"}
    assert pod.routes("100") == FIRST
    assert pod.routes("101") == SECOND
    assert pod.routes() == OTHERS
    pod.check()


def test_packets_leave_by_the_interface_whose_address_they_have(pod: Pod) -> None:
    assert "dev eth0" in way(pod, "203.0.113.1", "10.9.0.2")
    pod.add()
    assert "via 10.9.0.1 dev net1" in way(pod, "203.0.113.1", "10.9.0.2")
    assert "via fd09::1 dev net1" in way(pod, "2001:db8::1", "fd09::2")
    assert "via 10.7.0.1 dev eth0" in way(pod, "203.0.113.1", "10.7.0.2")


def test_what_a_route_has_is_kept(pod: Pod) -> None:
    pod.add()
    assert "mtu 1300" in pod.run("route", "show", "table", "100", "192.0.2.0/24")


def test_link_local_routes_stay(pod: Pod) -> None:
    pod.add()
    assert "fe80::/64 dev net1" in pod.run("-6", "route", "show", "table", "main")


def test_a_repeated_add_is_the_first_one(pod: Pod) -> None:
    pod.add()
    assert pod.add() == pod.before
    assert pod.rules() == {"10.9.0.2": "100", "fd09::2": "101"}
    assert (pod.routes("100"), pod.routes("101"), pod.routes()) == (FIRST, SECOND, OTHERS)


def test_tables_that_somebody_has_are_left_alone(pod: Pod) -> None:
    pod.run("rule", "add", "from", "203.0.113.5", "lookup", "100")
    pod.run("route", "add", "203.0.113.0/24", "dev", "eth0", "table", "102")
    pod.add()
    assert pod.rules() == {"203.0.113.5": "100", "10.9.0.2": "101", "fd09::2": "103"}


def test_two_addresses_of_one_subnet_have_the_same_routes(pod: Pod) -> None:
    pod.run("address", "add", "10.9.0.3/24", "dev", "net1")
    pod.before = result(FOUR, "10.9.0.3/24")
    pod.add()
    assert pod.rules() == {"10.9.0.2": "100", "10.9.0.3": "101"}
    assert pod.routes("100") == pod.routes("101") == FIRST
    assert pod.routes() == sorted([*OTHERS, "fd09::/64 - net1"])


def test_without_a_gateway_there_is_no_default_route(pod: Pod) -> None:
    pod.before = result(FOUR, gateway=False)
    pod.add()
    assert pod.routes("100") == FIRST[:3]


def test_addresses_of_another_interface_of_the_result_are_left_alone(pod: Pod) -> None:
    both = result(FOUR, "10.8.0.2/24")
    other = CniResult(
        interfaces=(both.interfaces[0], both.interfaces[1], both.interfaces[0]),
        ips=(both.ips[0], type(both.ips[1])(both.ips[1].address, interface=2)),
    )
    pod.add(other)
    assert pod.rules() == {"10.9.0.2": "100"}


def test_with_a_table_only_rules_are_made(pod: Pod) -> None:
    before = pod.routes()
    pod.run("route", "add", "default", "via", "10.9.0.1", "table", "7")
    pod.run("route", "add", "default", "via", "fd09::1", "table", "7")
    pod.add(table=7)
    assert pod.rules() == {"10.9.0.2": "7", "fd09::2": "7"}
    assert pod.routes() == before
    pod.add(table=7)
    pod.check(table=7)
    pod.delete(table=7)
    assert pod.rules() == {}


def test_del_deletes_the_rules_of_the_interfaces_addresses_and_once_more(pod: Pod) -> None:
    pod.run("rule", "add", "from", "203.0.113.5", "lookup", "7")
    pod.add()
    pod.delete()
    assert pod.rules() == {"203.0.113.5": "7"}
    pod.delete()
    pod.scratch.delete(pod.sbr, conf(), "c1", ifname="net1")


def test_del_without_the_interface_succeeds(pod: Pod) -> None:
    pod.add()
    pod.run("link", "del", "net1")
    pod.delete()


def test_del_succeeds_with_a_configuration_that_is_wrong(pod: Pod) -> None:
    pod.add()
    pod.delete(table="x")
    assert pod.rules() == {}


def test_a_failed_add_leaves_rules_and_routes_as_they_were(pod: Pod) -> None:
    before = pod.routes()
    six = result(FOUR, SIX)
    far = type(six.ips[1])(six.ips[1].address, gateway=type(six.ips[1].address.ip)("2001:db8::1"), interface=1)
    with pytest.raises(PluginError) as refused:
        pod.add(CniResult(interfaces=six.interfaces, ips=(six.ips[0], far)))
    assert refused.value.message == "Failed to add default route to 2001:db8::1: no route to host"
    assert pod.rules() == {}
    assert pod.routes() == before
    assert pod.routes("100") == pod.routes("101") == []
    pod.add()
    assert pod.rules() == {"10.9.0.2": "100", "fd09::2": "101"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("rule del from 10.9.0.2", "address 10.9.0.2 has no rule"),
        ("route flush table 100", "table 100 of address 10.9.0.2 has no route"),
    ],
)
def test_check_names_what_is_missing(pod: Pod, words: str, said: str) -> None:
    pod.add()
    pod.run(*words.split())
    with pytest.raises(PluginError, match=said):
        pod.check()
    if words.startswith("rule"):
        pod.add()
        pod.check()


@pytest.mark.parametrize(
    ("before", "sentence"),
    [
        (None, "This plugin must be called as chained plugin"),
        (CniResult(), "No IP addresses supplied on interface: net1"),
    ],
)
def test_add_needs_addresses(pod: Pod, before: CniResult | None, sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pod.scratch.add(pod.sbr, conf(), "c1", pod.netns, ifname="net1", prev_result=before)
    assert refused.value.message == sentence


def test_an_interface_that_is_not_there_is_named(pod: Pod) -> None:
    pod.run("link", "del", "net1")
    with pytest.raises(PluginError) as refused:
        pod.add()
    assert refused.value.message == "Cannot find network interface net1: Link not found"


def test_status_refuses_a_table_that_is_none(sbr: Sbr, scratch: ScratchCni) -> None:
    scratch.status(sbr, conf(table=7))
    with pytest.raises(InvalidRequest):
        scratch.status(sbr, conf(table=0))


def test_check_of_the_plugin_before_finds_a_route_that_was_carried_to_a_table(pod: Pod) -> None:
    pod.add()
    carried = CniRoute(IPv4Network("192.0.2.0/24"), gw=IPv4Address("10.9.0.9"))
    assert differences(pod, carried) == []
    assert differences(pod, replace(carried, table=254)) == ["route 192.0.2.0/24 via 10.9.0.9 is missing"]


def differences(pod: Pod, route: CniRoute) -> list[str]:
    inside = replace(pod.before.interfaces[1], sandbox=pod.netns.path)
    told = replace(pod.before, interfaces=(pod.before.interfaces[0], inside), routes=(route,))
    fields = {"container_id": "c1", "ifname": "net1", "netns": pod.netns, "prev_result": told}
    with links_in(pod.netns) as links:
        link = links.get("net1")
        assert link is not None
        request = pod.scratch.request(CniCheck, conf(), **fields)
        return list(inside_differences(request, links, link, told.interfaces[1]))
