"""`ipMasqDropInvalid`: what belongs to no connection cannot be masqueraded, and does not leave with a pod's address."""

import socket
import struct
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.node.outside import HOST, NEIGHBOUR
from tests.node.test_bridge_masquerade import sender_seen
from tests.programs import need

from nodeplug import Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bridge.plugin import Bridge

Make = Callable[..., dict[str, Any]]
RST = struct.pack("!HHIIBBHHH", 1234, 80, 0, 0, 5 << 4, 0x04, 0, 0, 0)
"""A segment of TCP that ends a connection; there is none."""
KEYS = {"cniVersion": "1.1.0", "ipMasq": True, "ipMasqDropInvalid": True}
OTHER = {"cniVersion": "1.1.0", "name": "other", "bridge": "br1", "ipMasq": True}


def senders(netns: Netns, outside: Netns, version: int) -> tuple[str, str]:
    """Send a stray segment, and datagrams before and after; where they come from, the segment's empty if it is lost."""
    there, family = NEIGHBOUR[version], socket.AF_INET if version == 4 else socket.AF_INET6

    def raw() -> socket.socket:
        return socket.socket(family, socket.SOCK_RAW, socket.IPPROTO_TCP)

    with run_in(outside, raw) as receiver, run_in(netns, raw) as client:
        sender_seen(netns, outside, there)  # now the neighbours know each other
        client.sendto(RST, (there, 0))
        sender = sender_seen(netns, outside, there)
        receiver.setblocking(False)
        try:
            return receiver.recvfrom(100)[1][0], sender
        except BlockingIOError:
            return "", sender


def nft(scratch: ScratchCni, *words: str) -> str:
    need("nft")
    command = ["nft", *words]
    return scratch.on_host(lambda: subprocess.run(command, check=True, capture_output=True, text=True).stdout)


@pytest.mark.parametrize(("version", "own"), [(4, "10.88.0.2"), (6, "fd00:88::2")])
@pytest.mark.parametrize("drops", [False, True], ids=["default", "drops"])
def test_a_stray_segment_leaves_with_the_pods_address_unless_it_is_dropped(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns, version: int, own: str, drops: bool
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(ipMasq=True, ipMasqDropInvalid=drops), "c1", netns)
    assert senders(netns, outside, version) == ("" if drops else own, HOST[version])


def test_another_network_of_the_host_is_left_alone(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns
) -> None:
    first, second = scratch.container(), scratch.container()
    scratch.add(bridge, config(**KEYS), "c1", first)
    scratch.add(bridge, config("10.99.0.0/24", **OTHER), "c2", second)
    assert senders(first, outside, 4) == ("", HOST[4])
    assert senders(second, outside, 4) == ("10.99.0.2", HOST[4])


def test_a_second_network_keeps_what_the_first_one_asked_for(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns
) -> None:
    """The rules of all subnets are written anew when one is missing."""
    netns = scratch.container()
    scratch.add(bridge, config(**KEYS), "c1", netns)
    scratch.add(bridge, config("10.99.0.0/24", **OTHER), "c2", scratch.container())
    scratch.delete(bridge, config("10.99.0.0/24", **OTHER), "c2")
    scratch.gc(bridge, config("10.99.0.0/24", **OTHER), [])
    assert senders(netns, outside, 4) == ("", HOST[4])


@pytest.mark.parametrize("lost", ["flush chain inet nodeplug_masquerade invalid", "flush ruleset"])
def test_a_lost_rule_is_found_and_restored(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns, lost: str
) -> None:
    scratch.on_host(bridge.start)  # its home is that host
    netns, network = scratch.container(), config(**KEYS)
    result = scratch.add(bridge, network, "c1", netns)
    scratch.on_host(bridge.health)
    for restore in (
        lambda: scratch.on_host(bridge.health),
        lambda: scratch.status(bridge, network),
        lambda: scratch.gc(bridge, network, [("c1", "eth0")]),
        lambda: scratch.add(bridge, network, "c3", scratch.container()),
    ):
        nft(scratch, lost)
        with pytest.raises(PluginError, match=r"subnet 10\.88\.0\.0/24 has no rule that"):
            scratch.check(bridge, network, "c1", netns, result)
        restore()
        scratch.check(bridge, network, "c1", netns, result)
    assert senders(netns, outside, 4) == ("", HOST[4])


def test_the_last_of_the_network_takes_the_rule_along(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    network, other = config(**KEYS), config("10.99.0.0/24", **OTHER)
    scratch.add(bridge, network, "c1", scratch.container())
    scratch.add(bridge, other, "c2", scratch.container())
    assert "ct state invalid" in nft(scratch, "list", "ruleset")
    scratch.delete(bridge, network, "c1")
    scratch.gc(bridge, network, [])
    assert "invalid" not in nft(scratch, "list", "ruleset")
    scratch.delete(bridge, other, "c2")
    scratch.gc(bridge, other, [])
    assert "nodeplug" not in nft(scratch, "list", "ruleset")
