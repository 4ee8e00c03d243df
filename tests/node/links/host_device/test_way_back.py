"""The card comes back to the host, whoever is killed and whatever the kernel does."""

from typing import Any

import pytest
from tests.node.killed_call import killed_call
from tests.node.links.host_device.card import Look, flat, is_home, link, network, records, run_ip

from nodeplug import CniResult, Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.host_device.plugin import HostDevice
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links


def test_a_name_that_the_host_gave_away_keeps_the_interface_in_the_container(
    scratch: ScratchCni, plugin: HostDevice
) -> None:
    netns = scratch.container()
    result = scratch.add(plugin, network(), "c1", netns)
    run_ip(scratch.host_netns, lambda ip: ip.link("add", ifname="card0", kind="veth", peer="other0"))
    with pytest.raises(PluginError, match='failed to move "card0" to hostNS: file exists'):
        scratch.delete(plugin, network(), "c1", netns)
    scratch.check(plugin, network(), "c1", netns, result)
    run_ip(scratch.host_netns, lambda ip: ip.link("del", index=ip.link_lookup(ifname="card0")[0]))
    scratch.delete(plugin, network(), "c1", netns)
    assert is_home(scratch)


def test_an_interface_comes_back_although_its_alias_is_lost(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    inside = link(netns, "eth0")
    assert inside is not None

    def clear() -> None:
        with Netlink() as netlink:
            Links(netlink).clear_alias(inside)

    run_in(netns, clear)
    scratch.delete(plugin, network(), "c1", netns)
    assert is_home(scratch)


def returned_by_the_kernel(scratch: ScratchCni, netns: Netns, name: str = "eth0") -> None:
    """Do what the kernel does with a card when its namespace ends (net/core/dev.c, default_device_exit_net).

    It moves it to the host, with its alias, under its name of the container or, where the host has that, another; a
    veth would end.
    """

    def move(ip: Any) -> None:
        index = ip.link_lookup(ifname="eth0")[0]
        ip.link("set", index=index, state="down")
        ip.link("set", index=index, ifname=name)
        ip.link("set", index=index, net_ns_fd=scratch.host_netns.fd)

    run_ip(netns, move)


@pytest.mark.parametrize("name", ["eth0", "dev3"])
def test_what_the_kernel_returned_gets_its_name_from_a_del_without_a_namespace(
    scratch: ScratchCni, plugin: HostDevice, name: str
) -> None:
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    returned_by_the_kernel(scratch, netns, name)
    scratch.delete(plugin, network(), "c1", None)
    assert is_home(scratch)


def test_what_the_kernel_returned_gets_its_name_from_a_collection(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    scratch.gc(plugin, network(), [("c1", "eth0")])
    scratch.gc(plugin, network(), None)
    scratch.gc(plugin, network(), [("c1", "eth0")])
    assert len(records(scratch)) == 1
    returned_by_the_kernel(scratch, netns)
    scratch.gc(plugin, network(), [])
    assert is_home(scratch)


def test_what_the_kernel_returned_is_found_by_the_next_add(scratch: ScratchCni, plugin: HostDevice) -> None:
    first, second = scratch.container(), scratch.container()
    scratch.add(plugin, flat(), "c1", first)
    returned_by_the_kernel(scratch, first)
    result = scratch.add(plugin, flat(), "c2", second)
    scratch.check(plugin, flat(), "c2", second, result)
    scratch.delete(plugin, flat(), "c1", None)
    scratch.check(plugin, flat(), "c2", second, result)
    scratch.delete(plugin, flat(), "c2", second)
    assert is_home(scratch)


def test_an_interface_with_an_alias_of_an_administrator_is_left_alone(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    scratch.add(plugin, flat(), "c1", netns)

    def label(ip: Any) -> None:
        ip.link("set", index=ip.link_lookup(ifname="wire0")[0], IFLA_IFALIAS="card0")

    run_ip(scratch.host_netns, label)
    scratch.gc(plugin, flat(), [])
    assert link(scratch.host_netns, "wire0") is not None
    scratch.delete(plugin, flat(), "c1", netns)
    assert is_home(scratch)


def test_an_add_killed_at_any_message_is_ended_by_del_and_completed_by_add(
    scratch: ScratchCni, plugin: HostDevice, look: Look
) -> None:
    netns, points = scratch.container(), 0

    def add() -> CniResult:
        return scratch.add(plugin, network(), "c1", netns)

    while killed_call(add, points):
        scratch.delete(plugin, network(), "c1", netns)
        assert is_home(scratch)
        assert killed_call(add, points)
        scratch.check(plugin, network(), "c1", netns, add())
        scratch.delete(plugin, network(), "c1", netns)
        assert is_home(scratch)
        assert look(netns).links == {"lo"}
        points += 1
    assert points > 4
    scratch.delete(plugin, network(), "c1", netns)


def test_a_del_killed_at_any_message_is_completed_by_the_next(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns, points = scratch.container(), 0

    def delete() -> None:
        scratch.delete(plugin, network(), "c1", netns)

    while True:
        scratch.add(plugin, network(), "c1", netns)
        if not killed_call(delete, points):
            break
        delete()
        assert is_home(scratch)
        points += 1
    assert points > 4
    assert is_home(scratch)


def test_a_gc_killed_at_any_message_is_completed_by_the_next(scratch: ScratchCni, plugin: HostDevice) -> None:
    points = 0

    def collect() -> None:
        scratch.gc(plugin, network(), [])

    while True:
        netns = scratch.container()
        scratch.add(plugin, network(), "c1", netns)
        returned_by_the_kernel(scratch, netns)
        if not killed_call(collect, points):
            break
        collect()
        assert is_home(scratch)
        points += 1
    assert points > 2
    assert is_home(scratch)
