"""Keys about the port of a bridge and the container's interface: isolation, an interface that stays down, DAD."""

import subprocess
from collections.abc import Callable
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import InvalidRequest, Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links

Make = Callable[..., dict[str, Any]]
Ping = Callable[[Netns, str], bool]
Clean = Callable[[Netns, set[str]], None]


def link(netns: Netns, name: str) -> Link:
    def find() -> Link | None:
        with Netlink() as netlink:
            return Links(netlink).get(name)

    found = run_in(netns, find)
    assert found is not None
    return found


def port(scratch: ScratchCni, container: str) -> Link:
    return link(scratch.host_netns, Attachment("net", container, "eth0").host_veth)


def reaches(sender: Netns, address: str) -> bool:
    """Whether a neighbour answers: one question is asked three times, a second apart."""

    need("ping")

    def look() -> bool:
        return subprocess.run(["ping", "-c", "1", "-W", "1", address], capture_output=True, check=False).returncode == 0

    return run_in(sender, look)


def test_isolated_containers_reach_their_gateway_and_not_each_other(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    one, other, open_to_all = scratch.container(), scratch.container(), scratch.container()
    scratch.add(bridge, config(portIsolation=True), "c1", one)
    scratch.add(bridge, config(portIsolation=True), "c2", other)
    scratch.add(bridge, config(), "c3", open_to_all)
    assert reaches(one, "10.88.0.1")
    assert not reaches(one, "10.88.0.3")
    assert reaches(one, "10.88.0.4")


def test_a_repeated_add_takes_the_isolation_that_is_asked_for_now(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    for isolated in (True, False):
        scratch.add(bridge, config(portIsolation=isolated), "c1", netns)
        assert port(scratch, "c1").isolated is isolated


def test_check_tells_an_isolation_that_was_lost(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, config(portIsolation=True), "c1", netns)
    scratch.check(bridge, config(portIsolation=True), "c1", netns, result)
    need("bridge")
    words = ["bridge", "link", "set", "dev", port(scratch, "c1").name, "isolated", "off"]
    scratch.on_host(lambda: subprocess.run(words, check=True))
    with pytest.raises(PluginError, match=r"isolation of veth[0-9a-f]* is off"):
        scratch.check(bridge, config(portIsolation=True), "c1", netns, result)


@pytest.fixture
def machine(config: Make) -> dict[str, Any]:
    """A network for virtual machines, which bring the interface up when they take it."""
    return {key: value for key, value in config(disableContainerInterface=True).items() if key != "ipam"}


def test_an_interface_can_be_left_down(scratch: ScratchCni, bridge: Bridge, machine: dict[str, Any]) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, machine, "c1", netns)
    assert not link(netns, "eth0").is_up
    assert result.interfaces[2].mac == link(netns, "eth0").mac
    assert port(scratch, "c1").is_up
    scratch.check(bridge, machine, "c1", netns, result)


def test_who_takes_the_interface_may_bring_it_up(
    scratch: ScratchCni, bridge: Bridge, machine: dict[str, Any], clean: Clean
) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, machine, "c1", netns)
    need("ip")
    run_in(netns, lambda: subprocess.run(["ip", "link", "set", "eth0", "up"], check=True))
    scratch.check(bridge, machine, "c1", netns, result)
    scratch.status(bridge, {**machine, "cniVersion": "1.1.0"})
    bridge.health()
    scratch.delete(bridge, machine, "c1", netns)
    clean(netns, {"lo"})


def test_an_interface_that_stays_down_has_no_addresses(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match="cannot use IPAM when DisableContainerInterface flag is set"):
        scratch.add(bridge, config(disableContainerInterface=True), "c1", netns)
    clean(netns, {"lo"})


def states(netns: Netns) -> dict[str, bool]:
    """The IPv6 addresses of eth0, and whether each is still tentative (/proc/net/if_inet6)."""
    lines = run_in(netns, lambda: Path("/proc/thread-self/net/if_inet6").read_text()).splitlines()
    return {line.split()[0][:4]: bool(int(line.split()[4], 16) & 0x40) for line in lines if line.endswith("eth0")}


def test_an_address_that_no_neighbour_has_can_be_used_when_add_returns(
    scratch: ScratchCni, bridge: Bridge, config: Make, ping: Ping
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(enabledad=True), "c1", netns)
    assert states(netns) == {"fd00": False, "fe80": False}
    settings = [Path("/proc/sys/net/ipv6/conf/eth0", name) for name in ("accept_dad", "enhanced_dad")]
    assert run_in(netns, lambda: [path.read_text().strip() for path in settings]) == ["1", "1"]
    assert ping(netns, "fd00:88::1")


def squat(netns: Netns, address: str) -> None:
    """Take an address that IPAM gives to nobody."""

    def add() -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            eth0 = links.get("eth0")
            assert eth0 is not None
            links.add_address(eth0, ip_interface(address))

    run_in(netns, add)


def test_an_address_that_a_neighbour_has_fails_the_add_and_leaves_nothing(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    neighbour, netns = scratch.container(), scratch.container()
    scratch.add(bridge, config(), "c0", neighbour)
    squat(neighbour, "fd00:88::3/64")
    words = 'failed to settle addresses for "eth0": link eth0 has address fd00:88::3 in DADFAILED state'
    with pytest.raises(PluginError, match=words):
        scratch.add(bridge, config(enabledad=True, ipMasq=True, macspoofchk=True), "c1", netns)
    clean(netns, {"lo"})
    scratch.add(bridge, config(), "c1", netns)  # without detection nobody notices
