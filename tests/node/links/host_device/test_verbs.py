"""host-device in scratch namespaces: a container gets the card, and others are told."""

from typing import Any

import pytest
from tests.node.links.host_device.card import MAC, Look, Ping, flat, held, is_home, link, network, run_ip

from nodeplug import CniDns, CniInterface, Exhausted, InvalidRequest, NotReady, PluginError
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.host_device.plugin import HostDevice


@pytest.mark.parametrize("config", [network(), flat(), network(dns={"domain": "a"})], ids=["addresses", "none", "dns"])
def test_the_interface_is_the_containers_until_del(
    scratch: ScratchCni, plugin: HostDevice, look: Look, config: dict[str, Any]
) -> None:
    netns = scratch.container()
    result = scratch.add(plugin, config, "c1", netns)
    inside = link(netns, "eth0")
    assert inside is not None
    assert (inside.alias, inside.mac, inside.is_up) == ("card0", MAC, True)
    assert link(scratch.host_netns, "card0") is None
    assert result.interfaces == (CniInterface("eth0", mac=MAC, sandbox=netns.path),)
    assert [(str(ip.address), ip.interface) for ip in result.ips] == ([("10.88.0.2/24", 0)] if "ipam" in config else [])
    assert result.dns == CniDns(domain="a" if "dns" in config else "")
    scratch.check(plugin, config, "c1", netns, result)
    for _ in range(2):
        scratch.delete(plugin, config, "c1", netns)
        assert is_home(scratch)
        assert look(netns).links == {"lo"}


def test_what_is_beyond_the_wire_is_reached(scratch: ScratchCni, plugin: HostDevice, ping: Ping) -> None:
    def beyond(route: Any) -> None:
        route.addr("add", index=route.link_lookup(ifname="wire0")[0], address="10.88.0.1", prefixlen=24)

    run_ip(scratch.host_netns, beyond)
    netns = scratch.container()
    scratch.add(plugin, network(), "c1", netns)
    assert ping(netns, "10.88.0.1")


def test_a_hardware_address_names_the_interface(scratch: ScratchCni, plugin: HostDevice) -> None:
    config, netns = network(hwaddr=MAC.upper().replace(":", "-")), scratch.container()
    result = scratch.add(plugin, config, "c1", netns)
    assert scratch.add(plugin, config, "c1", netns) == result
    scratch.delete(plugin, config, "c1", netns)
    assert is_home(scratch)


def test_an_interface_of_two_names_keeps_the_one_that_is_asked_for(scratch: ScratchCni, plugin: HostDevice) -> None:
    """A name of the host that the container has, too, and one of the container that the host has."""
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="card0", kind="veth", peer="other0"))
    scratch.add(plugin, network(), "c1", netns, ifname="wire0")
    inside = link(netns, "wire0")
    assert inside is not None
    assert inside.alias == "card0"
    scratch.delete(plugin, network(), "c1", netns, ifname="wire0")
    assert is_home(scratch)


def test_a_repeated_add_returns_the_same(scratch: ScratchCni, plugin: HostDevice, look: Look) -> None:
    netns = scratch.container()
    first = scratch.add(plugin, network(), "c1", netns)
    before = look(netns)
    assert scratch.add(plugin, network(), "c1", netns) == first
    assert look(netns) == before


def test_a_second_container_is_told_that_the_interface_is_away(scratch: ScratchCni, plugin: HostDevice) -> None:
    scratch.add(plugin, network(), "c1", scratch.container())
    with pytest.raises(InvalidRequest, match="failed to find host device: Link not found"):
        scratch.add(plugin, network(), "c2", scratch.container())
    assert held(scratch) == ["10.88.0.2"]
    scratch.status(plugin, network())  # the network is not broken because its card is in use


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"device": "", "runtimeConfig": {}}, r'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
        ({"device": 5}, "failed to load netconf: "),
        ({"device": "nope"}, "failed to find host device: Link not found"),
        ({"hwaddr": "x"}, 'failed to parse MAC address "x": address x: invalid MAC address'),
        ({"hwaddr": "02:00:00:00:00:99"}, "failed to find host device: failed to find physical interface"),
        ({"kernelpath": "/tmp/x"}, 'kernel device path "/tmp/x" must be absolute and begin with /sys/devices/'),
        (
            {"kernelpath": "/sys/devices/nope"},
            'directory /sys/devices/nope/net: "open /sys/devices/nope/net: no such file or directory"',
        ),
        (
            {"pciBusID": "0000:ff:ff.7"},
            r"error with host device: lstat /sys/bus/pci\S*: no such file or directory",
        ),
        ({"runtimeConfig": {"deviceID": "nope"}}, "runtime config DeviceID nope not found or unsupported"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_and_nothing_is_moved(
    scratch: ScratchCni, plugin: HostDevice, keys: dict[str, Any], said: str
) -> None:
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match=said):
        scratch.add(plugin, network(**keys), "c1", netns)
    scratch.delete(plugin, network(**keys), "c1", netns)
    assert is_home(scratch)


def test_what_the_kernel_does_not_move_is_said(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns = scratch.container()
    with pytest.raises(PluginError, match='failed to move link failed to move "lo" to tempNS: invalid argument'):
        scratch.add(plugin, network(device="lo"), "c1", netns)
    assert is_home(scratch)


@pytest.mark.parametrize(
    ("ifname", "said"),
    [
        ("eth0", r'failed to move "eth0" \(host: "card0"\) to container NS: file exists'),
        ("lo", 'failed to rename host device "card0" to "lo": file exists'),
    ],
)
def test_a_name_that_the_container_has_is_left_to_who_made_it(
    scratch: ScratchCni, plugin: HostDevice, look: Look, ifname: str, said: str
) -> None:
    netns = scratch.container()
    run_ip(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(InvalidRequest, match=f"failed to move link {said}"):
        scratch.add(plugin, network(), "c1", netns, ifname=ifname)
    scratch.delete(plugin, network(), "c1", netns, ifname=ifname)
    assert look(netns).links == {"lo", "eth0", "other0"}
    assert is_home(scratch)


def test_a_full_range_gives_the_interface_back_as_it_was(scratch: ScratchCni, plugin: HostDevice) -> None:
    foreign = {"type": "nope"}
    with pytest.raises(PluginError):
        scratch.add(plugin, network(ipam=foreign), "c1", scratch.container())
    card = link(scratch.host_netns, "card0")
    assert card is not None
    assert card.is_up
    assert is_home(scratch)
    one = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/30"}]]}
    (scratch.folder / "networks/net").mkdir(parents=True, exist_ok=True)
    (scratch.folder / "networks/net/10.88.0.2").write_text("other\r\neth0")
    with pytest.raises(Exhausted, match="no IP addresses available"):
        scratch.add(plugin, network(ipam=one), "c1", scratch.container())
    with pytest.raises(NotReady, match="0 of 1 addresses free"):
        scratch.status(plugin, network(ipam=one))
    assert link(scratch.host_netns, "card0") is not None


def test_check_names_what_is_lost(scratch: ScratchCni, plugin: HostDevice) -> None:
    netns, config = scratch.container(), network()
    result = scratch.add(plugin, config, "c1", netns)
    inside = link(netns, "eth0")
    assert inside is not None
    run_ip(netns, lambda ip: ip.addr("del", index=inside.index, address="10.88.0.2", prefixlen=24))
    with pytest.raises(PluginError, match=r"lost its address 10\.88\.0\.2/24"):
        scratch.check(plugin, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("set", index=inside.index, address="02:00:00:00:00:77"))
    with pytest.raises(PluginError, match="has MAC 02:00:00:00:00:77, not"):
        scratch.check(plugin, config, "c1", netns, result)
    run_ip(netns, lambda ip: ip.link("del", index=inside.index))
    with pytest.raises(PluginError, match="eth0 does not exist"):
        scratch.check(plugin, config, "c1", netns, result)


def test_status_reports_an_interface_that_is_nowhere(scratch: ScratchCni, plugin: HostDevice) -> None:
    scratch.status(plugin, network())
    scratch.status(plugin, network(runtimeConfig={}))  # the runtime names it with ADD
    with pytest.raises(NotReady, match="failed to find host device: Link not found"):
        scratch.status(plugin, network(device="nope"))
