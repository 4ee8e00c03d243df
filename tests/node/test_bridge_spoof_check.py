"""`macspoofchk`: a container sends from its own hardware address alone, and nothing of that is left behind."""

import socket
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.programs import need

from nodeplug import Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import Netlink, Request
from nodeplug_net.netlink.links import Links
from nodeplug_net.netlink.messages import delete_link, u32
from nodeplug_net.nftables.transactions import generation_of

Make = Callable[..., dict[str, Any]]
Ping = Callable[[Netns, str], bool]
NETFILTER = 12
ETHERTYPE = 0x88B5  # for experiments (IEEE 802)
EMPTY = ["table bridge nat {", "chain PREROUTING {", "type filter hook prerouting priority dstnat; policy accept;"]
"""nft(8) shows -300, the priority of `dstnat` in tables of bridges, by its name."""


@pytest.fixture
def network(config: Make) -> dict[str, Any]:
    return config(macspoofchk=True)


def rules(scratch: ScratchCni) -> list[str]:
    """The tables of family bridge as nft(8) prints them."""
    need("nft")
    command = ["nft", "list", "ruleset", "bridge"]
    done = scratch.on_host(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
    return [line.strip() for line in done.stdout.splitlines() if line.strip() not in {"", "}"}]


def generation(scratch: ScratchCni) -> int:
    def read() -> int | None:
        with Netlink(NETFILTER) as netlink:
            return generation_of(netlink)

    found = scratch.on_host(read)
    assert found is not None
    return found


def arrives(sender: Netns, receiver: Netns, source: bytes) -> bool:
    """Send a frame to everybody from a source; whether it came in at the receiver before one from the real source."""

    def listen() -> socket.socket:
        listener = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETHERTYPE))
        listener.bind(("eth0", ETHERTYPE))
        listener.settimeout(30)
        return listener

    def send() -> None:
        with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as raw:
            raw.bind(("eth0", 0))
            own = raw.getsockname()[4]
            for address, text in ((source, b"false"), (own, b"real")):
                raw.send(b"\xff" * 6 + address + ETHERTYPE.to_bytes(2, "big") + text.ljust(50, b"."))

    with run_in(receiver, listen) as listener:
        run_in(sender, send)
        return listener.recv(100)[14:].startswith(b"false")


def test_a_frame_with_another_source_does_not_leave_the_container(
    scratch: ScratchCni, bridge: Bridge, config: Make, network: dict[str, Any], ping: Ping
) -> None:
    one, other, unchecked = scratch.container(), scratch.container(), scratch.container()
    scratch.add(bridge, network, "c1", one)
    scratch.add(bridge, network, "c2", other)
    scratch.add(bridge, config(), "c3", unchecked)
    assert not arrives(one, other, b"\x02\x00\x00\x00\x00\x07")
    assert arrives(unchecked, other, b"\x02\x00\x00\x00\x00\x07")
    assert ping(one, "10.88.0.3")


def test_a_network_without_addresses_is_checked_too(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    network = {key: value for key, value in config(macspoofchk=True).items() if key != "ipam"}
    one, other = scratch.container(), scratch.container()
    scratch.add(bridge, network, "c1", one)
    scratch.add(bridge, network, "c2", other)
    assert not arrives(one, other, b"\x02\x00\x00\x00\x00\x07")


def test_the_rules_are_those_of_the_reference(scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]) -> None:
    result = scratch.add(bridge, network, "c1", scratch.container())
    host, chain, comment = result.interfaces[1].name, "cni-br-iface-c1-eth0", 'comment "macspoofchk-c1-eth0"'
    assert rules(scratch) == [
        *EMPTY,
        f'iifname "{host}" jump {chain} {comment}',
        f"chain {chain} {{",
        f"jump {chain}-mac {comment}",
        f"chain {chain}-mac {{",
        f"ether saddr {result.interfaces[2].mac} return {comment}",
        f"drop {comment}",
    ]


def test_a_repeated_add_changes_no_rule(scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]) -> None:
    netns = scratch.container()
    scratch.add(bridge, network, "c1", netns)
    before = rules(scratch)
    scratch.add(bridge, network, "c1", netns)
    assert rules(scratch) == before


def test_an_id_that_fills_a_comment_is_checked_and_ended(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]
) -> None:
    netns, container = scratch.container(), "c" * 200
    result = scratch.add(bridge, network, container, netns)
    scratch.check(bridge, network, container, netns, result)
    scratch.delete(bridge, network, container, netns)
    assert rules(scratch) == EMPTY


@pytest.mark.parametrize("with_netns", [True, False])
@pytest.mark.parametrize("keys", [{"macspoofchk": True}, {}], ids=["asked", "no-longer-asked"])
def test_the_rules_go_with_the_attachment(
    scratch: ScratchCni, bridge: Bridge, config: Make, network: dict[str, Any], with_netns: bool, keys: dict[str, Any]
) -> None:
    netns = scratch.container()
    scratch.add(bridge, network, "c2", scratch.container())
    others = rules(scratch)
    scratch.add(bridge, network, "c1", netns)
    scratch.delete(bridge, config(**keys), "c1", netns if with_netns else None)
    assert rules(scratch) == others


def test_masquerading_and_the_check_begin_and_end_in_one_transaction(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    network, netns = config(macspoofchk=True, ipMasq=True), scratch.container()
    scratch.add(bridge, network, "c2", scratch.container())  # makes the table of masquerading
    before = generation(scratch)
    scratch.add(bridge, network, "c1", netns)
    between = generation(scratch)
    scratch.delete(bridge, network, "c1", netns)
    assert (between - before, generation(scratch) - between) == (1, 1)


@pytest.mark.programs("nft")
def test_what_others_removed_does_not_keep_masquerading_or_the_rest_of_the_check(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    network = config(macspoofchk=True, ipMasq=True)
    scratch.add(bridge, network, "c1", scratch.container())
    nft = ["nft", "flush chain bridge nat PREROUTING; flush chain bridge nat cni-br-iface-c1-eth0"]
    scratch.on_host(lambda: subprocess.run(nft, check=True))
    scratch.delete(bridge, network, "c1")
    assert rules(scratch) == EMPTY


def test_a_failed_add_leaves_no_rules(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    network = config("10.88.0.0/24", macspoofchk=True, ipMasq=True)
    network["ipam"]["routes"] = [{"dst": "10.1.0.0/16", "gw": "172.16.0.1"}]
    with pytest.raises(PluginError, match="cannot add route"):
        scratch.add(bridge, network, "c1", scratch.container())
    assert rules(scratch) == EMPTY


def test_a_repeated_add_that_fails_leaves_the_rules_of_the_first(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    network, netns = config("10.88.0.0/24", macspoofchk=True), scratch.container()
    scratch.add(bridge, network, "c1", netns)
    before = rules(scratch)
    network["ipam"]["routes"] = [{"dst": "10.1.0.0/16", "gw": "172.16.0.1"}]
    with pytest.raises(PluginError, match="cannot add route"):
        scratch.add(bridge, network, "c1", netns)
    assert rules(scratch) == before


DAMAGES = {
    "delete table bridge nat": "no rule that jumps to cni-br-iface-c1-eth0",
    "flush chain bridge nat PREROUTING": "no rule that jumps to cni-br-iface-c1-eth0",
    "flush chain bridge nat cni-br-iface-c1-eth0": "does not jump to cni-br-iface-c1-eth0-mac",
    "flush chain bridge nat cni-br-iface-c1-eth0-mac": "alone pass",
    "add rule bridge nat cni-br-iface-c1-eth0-mac accept": "alone pass",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_check_names_what_is_missing_and_the_next_add_restores_it(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], damage: str
) -> None:
    netns = scratch.container()
    result = scratch.add(bridge, network, "c1", netns)
    before = rules(scratch)
    scratch.check(bridge, network, "c1", netns, result)
    scratch.on_host(lambda: subprocess.run(["nft", damage], check=True))
    with pytest.raises(PluginError, match=DAMAGES[damage]):
        scratch.check(bridge, network, "c1", netns, result)
    scratch.add(bridge, network, "c1", netns)
    assert rules(scratch) == before


def vanish(netns: Netns) -> None:
    def delete() -> None:
        with Netlink() as netlink:
            link = Links(netlink).get("eth0")
            assert link is not None
            netlink.ask(Request(delete_link().fill(index=u32(link.index)), "delete eth0"))

    run_in(netns, delete)


def test_a_collection_removes_the_rules_of_what_is_gone_and_no_others(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]
) -> None:
    """One ended without its DEL, one the runtime no longer knows."""
    gone = scratch.container()
    scratch.add(bridge, network, "valid", scratch.container())
    before = rules(scratch)
    scratch.add(bridge, network, "c1", gone)
    scratch.add(bridge, network, "c2", scratch.container())
    vanish(gone)
    scratch.gc(bridge, network, [("valid", "eth0")])
    assert rules(scratch) == before


def test_the_next_start_removes_the_rules_of_interfaces_that_are_gone(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]
) -> None:
    netns = scratch.container()
    scratch.add(bridge, network, "c2", scratch.container())
    before = rules(scratch)
    scratch.add(bridge, network, "c1", netns)
    vanish(netns)
    scratch.on_host(bridge.start)
    assert rules(scratch) == before


def test_rules_that_a_killed_add_left_are_replaced(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]
) -> None:
    """The interface went with its namespace, its rules have another MAC."""
    old, new = scratch.container(), scratch.container()
    scratch.add(bridge, network, "c1", old)
    vanish(old)
    result = scratch.add(bridge, network, "c1", new)
    scratch.check(bridge, network, "c1", new, result)
    assert len([line for line in rules(scratch) if "ether saddr" in line]) == 1
    assert Attachment("net", "c1", "eth0").host_veth in " ".join(rules(scratch))
