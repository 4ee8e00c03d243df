"""The bridge plugin's DEL and GC: nothing of a container stays, whatever is left of it and of the configuration."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.node.bridged import files, link, present

from nodeplug import Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

Make = Callable[..., dict[str, Any]]
Look = Callable[[Netns], Any]


@pytest.mark.parametrize("with_netns", [True, False])
def test_del_removes_link_address_and_masquerading(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look, with_netns: bool
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(ipMasq=True), "c1", netns)
    scratch.delete(bridge, config(ipMasq=True), "c1", netns if with_netns else None)
    assert look(netns).links == {"lo"}
    assert look(scratch.host_netns).links == {"lo", "br0"}
    assert files(scratch) == set()


def test_del_succeeds_twice_and_for_a_container_that_never_was(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    for _ in range(2):
        scratch.delete(bridge, config(), "c1", netns)
        scratch.delete(bridge, config(), "c1", None)
    scratch.delete(bridge, config(), "c9", netns)
    scratch.delete(bridge, config(bridge="br9"), "c9", None)


def test_del_after_the_namespace_vanished_frees_the_address(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)

    def vanish() -> None:
        with Netlink() as netlink:  # what the kernel does to the pair when its namespace ends
            links = Links(netlink)
            port = links.get(Attachment("net", "c1", "eth0").host_veth)
            assert port is not None
            bridge._plane.reaper.delete(port).wait(links)

    scratch.on_host(vanish)
    scratch.delete(bridge, config(), "c1", None)
    assert files(scratch) == set()


def test_del_needs_nothing_of_the_configuration_but_name_and_ipam_type(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    broken = config("nonsense", vlan=7, hairpinMode=True, promiscMode=True)
    scratch.delete(bridge, broken, "c1", netns)
    assert files(scratch) == set()
    assert link(netns, "eth0") is None


def test_del_releases_addresses_although_the_bridge_has_no_usable_name(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    nameless = config(bridge="a%d-name-that-is-too-long")
    scratch.add(bridge, config(), "c1", netns)
    scratch.delete(bridge, nameless, "c1", netns)
    assert files(scratch) == set()
    assert link(netns, "eth0") is None


def test_gc_keeps_addresses_while_it_cannot_find_the_links_that_have_them(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config(), "c2", scratch.container())
    before = files(scratch)
    with pytest.raises(PluginError, match="bridge"):
        scratch.gc(bridge, config(bridge="a%d-name-that-is-too-long"), [])
    assert files(scratch) == before != set()
    scratch.gc(bridge, config(), [])
    assert files(scratch) == set()


def test_del_leaves_an_interface_alone_that_belongs_to_another_network(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    scratch.delete(bridge, config(name="elsewhere"), "c1", netns)
    assert present(netns, "eth0").is_up


def test_del_removes_an_attachment_of_the_reference_plugin(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)

    def disguise() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only this test renames a link

        with IPRoute() as route:
            index = route.link_lookup(ifname=Attachment("net", "c1", "eth0").host_veth)[0]
            route.link("set", index=index, state="down")
            route.link("set", index=index, ifname="veth12345678", ifalias="")
            route.link("set", index=index, state="up")

    scratch.on_host(disguise)
    assert present(scratch.host_netns, "veth12345678").alias == ""
    scratch.delete(bridge, config(), "c1", netns)
    assert link(netns, "eth0") is None
    assert link(scratch.host_netns, "veth12345678") is None
