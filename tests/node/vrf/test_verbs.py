"""What an interface has before and after it is in a VRF, and what is said where the kernel has none."""

import subprocess
from typing import Any

import pytest
from tests.node.vrf.lab import ADDRESSES, Pod, conf, result

from nodeplug import InvalidRequest, PluginError

ROUTES = ["10.9.0.0/24 -", "192.0.2.0/24 10.9.0.9 1300", "198.51.100.0/24 -", "2001:db8::/32 fd09::9", "fd09::/64 -"]


def test_add_puts_the_interface_with_its_addresses_and_routes_into_a_vrf(vrf_pod: Pod) -> None:
    assert vrf_pod.routes("main") == ROUTES
    assert vrf_pod.add() == result("net1")
    assert vrf_pod.vrfs() == {"blue": 1}
    assert vrf_pod.inside() == ["net1"]
    assert vrf_pod.addresses() == sorted(ADDRESSES["net1"])
    assert vrf_pod.routes("1") == ROUTES
    assert vrf_pod.routes("main") == []
    vrf_pod.check()


def test_packets_of_the_vrf_go_by_its_routes(vrf_pod: Pod) -> None:
    vrf_pod.add()
    assert "dev net1" in vrf_pod.run("route", "get", "192.0.2.1", "vrf", "blue")
    assert "dev net1" in vrf_pod.run("route", "get", "2001:db8::1", "vrf", "blue")
    with pytest.raises(subprocess.CalledProcessError):
        vrf_pod.run("route", "get", "192.0.2.1")


def test_a_repeated_add_is_the_first_one(vrf_pod: Pod) -> None:
    vrf_pod.add()
    assert vrf_pod.add() == result("net1")
    assert (vrf_pod.vrfs(), vrf_pod.inside(), vrf_pod.routes("1")) == ({"blue": 1}, ["net1"], ROUTES)


def test_a_repeated_add_gives_back_what_a_killed_one_had_not(vrf_pod: Pod) -> None:
    vrf_pod.add()
    vrf_pod.run("address", "flush", "dev", "net1", "scope", "global")
    vrf_pod.run("route", "flush", "table", "1")
    vrf_pod.add()
    assert vrf_pod.addresses() == sorted(ADDRESSES["net1"])
    assert "192.0.2.0/24 10.9.0.9" in vrf_pod.routes("1")


def test_the_vrf_ends_with_its_last_interface(vrf_pod: Pod) -> None:
    vrf_pod.make("net2")
    vrf_pod.add()
    vrf_pod.add("net2")
    assert (vrf_pod.vrfs(), vrf_pod.inside()) == ({"blue": 1}, ["net1", "net2"])
    vrf_pod.delete()
    assert (vrf_pod.vrfs(), vrf_pod.inside()) == ({"blue": 1}, ["net2"])
    assert (vrf_pod.addresses(), vrf_pod.routes("main")) == (sorted(ADDRESSES["net1"]), ROUTES)
    vrf_pod.delete("net2")
    assert vrf_pod.vrfs() == {}
    vrf_pod.delete("net2")


def test_del_without_the_interface_deletes_an_empty_vrf(vrf_pod: Pod) -> None:
    vrf_pod.add()
    vrf_pod.run("link", "del", "net1")
    vrf_pod.delete()
    assert vrf_pod.vrfs() == {}


def test_two_vrfs_have_tables_of_their_own(vrf_pod: Pod) -> None:
    vrf_pod.make("net2")
    vrf_pod.add()
    vrf_pod.add("net2", vrfname="red")
    assert vrf_pod.vrfs() == {"blue": 1, "red": 2}
    assert vrf_pod.inside("red") == ["net2"]


def test_a_table_can_be_chosen(vrf_pod: Pod) -> None:
    vrf_pod.add(table=300)
    assert vrf_pod.vrfs() == {"blue": 300}
    assert vrf_pod.routes("300") == ROUTES
    vrf_pod.check(table=300)
    with pytest.raises(PluginError, match="VRF blue has routing table 300, not 7"):
        vrf_pod.check(table=7)
    with pytest.raises(InvalidRequest) as refused:
        vrf_pod.add(table=7)
    assert refused.value.message == "cmdAdd failed: VRF blue already exist with different routing table 300"


def test_an_interface_of_another_master_is_refused_and_no_vrf_is_left(vrf_pod: Pod) -> None:
    vrf_pod.run("link", "add", "br0", "type", "bridge")
    vrf_pod.run("link", "set", "net1", "master", "br0")
    with pytest.raises(PluginError) as refused:
        vrf_pod.add()
    assert refused.value.message == "cmdAdd failed: interface net1 has already a master set: br0"
    assert vrf_pod.vrfs() == {}


def test_an_interface_that_is_not_there_is_named_and_no_vrf_is_left(vrf_pod: Pod) -> None:
    vrf_pod.run("link", "del", "net1")
    with pytest.raises(PluginError) as refused:
        vrf_pod.add()
    assert refused.value.message == "cmdAdd failed: could not get link by name net1"
    assert vrf_pod.vrfs() == {}


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("link set net1 nomaster", "failed to find net1 associated to vrf blue"),
        ("link del blue", "Link not found"),
        ("link set blue down", "VRF blue is down"),
    ],
)
def test_check_names_what_somebody_changed(vrf_pod: Pod, words: str, sentence: str) -> None:
    vrf_pod.add()
    vrf_pod.run(*words.split())
    with pytest.raises(PluginError, match=sentence):
        vrf_pod.check()


def test_a_name_of_another_link_is_refused(pod: Pod) -> None:
    with pytest.raises(InvalidRequest) as refused:
        pod.add(vrfname="net1-peer")
    assert refused.value.message == "cmdAdd failed: Netlink net1-peer is not a VRF"


def test_del_leaves_a_link_alone_that_is_no_vrf(pod: Pod) -> None:
    pod.delete(vrfname="net1-peer")
    assert "net1-peer" in pod.run("link", "show")


def test_del_succeeds_with_a_configuration_that_is_wrong(pod: Pod) -> None:
    pod.delete(vrfname="")
    pod.scratch.delete(pod.vrf, conf(), "c1")


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"vrfname": ""}, "configuration is expected to have a valid vrf name"),
        ({"vrfname": "sixteen-letters-"}, "'sixteen-letters-' is no name of an interface"),
        ({"table": -1}, "failed to load netconf"),
    ],
)
def test_wrong_keys_are_refused(pod: Pod, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest, match=sentence):
        pod.add(**keys)
    with pytest.raises(InvalidRequest, match=sentence):
        pod.scratch.status(pod.vrf, conf(**keys))


def test_add_needs_a_previous_result(pod: Pod) -> None:
    with pytest.raises(InvalidRequest, match="missing prevResult from earlier plugin"):
        pod.scratch.add(pod.vrf, conf(), "c1", pod.netns, ifname="net1", prev_result=None)
