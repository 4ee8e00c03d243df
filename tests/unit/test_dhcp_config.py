"""What a network says to a DHCP server, what it asks, and what an answer comes to."""

from dataclasses import replace
from ipaddress import IPv4Address, IPv4Interface
from typing import Any

import pytest

from nodeplug import CniDel, InvalidRequest, Netns, PluginError
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.config import client_id, parse_dhcp
from nodeplug_net.dhcp.exchange import Aim, Client, Exchange, release_of
from nodeplug_net.dhcp.lease import Lease, granted
from nodeplug_net.dhcp.message import Message

SERVER = IPv4Address("10.99.0.1")
MAC = b"\2\0\0\0\0\1"


def request(container: str = "c1", args: str = "", **ipam: Any) -> CniDel:
    return CniDel(
        claim="nodeplug-dhcp",
        network="net",
        version="1.1.0",
        config={"name": "net", "bridge": "br0", "ipam": {"type": "dhcp", **ipam}},
        host_netns=Netns.unopened("/x"),
        container_id=container,
        ifname="eth0",
        args_text=args,
    )


def ack(**options: bytes) -> Message:
    given = {dhcp.SUBNET_MASK: b"\xff\xff\xff\0"} | {int(key[1:]): value for key, value in options.items()}
    return Message(dhcp.BOOTREPLY, 1, MAC, yiaddr=IPv4Address("10.99.0.10"), options=given)


def lease(**options: bytes) -> Lease:
    return granted(ack(**options), SERVER, MAC, 1000.0)


def test_a_client_is_known_by_container_network_and_interface() -> None:
    assert client_id(request()) == b"\0c1/net/eth0"
    assert len(client_id(request("c" * 300))) == 255


def test_routers_and_mask_are_asked_for() -> None:
    assert parse_dhcp(request()).options == {55: b"\3\1"}
    assert parse_dhcp(request(request=[{"option": "121"}, {"option": "routers"}])).options == {55: b"\x79\3\1"}
    skipped = [{"skipDefault": True}, {"option": "subnet-mask"}]
    assert parse_dhcp(request(request=skipped)).options == {55: b"\1"}
    assert parse_dhcp(request(request=[{"skipDefault": True}])).options == {55: b"\1\3\x0f\6"}


def test_values_come_from_the_configuration_and_then_from_the_arguments() -> None:
    provide = [{"option": "host-name", "value": "a", "fromArg": "POD"}, {"option": "60", "value": "v"}]
    assert parse_dhcp(request(provide=provide)).options == {12: b"a", 60: b"v", 55: b"\3\1"}
    assert parse_dhcp(request(args="junk;POD=b=c", provide=provide)).options == {12: b"b=c", 60: b"v", 55: b"\3\1"}


def test_the_socket_of_a_daemon_means_nothing() -> None:
    config = parse_dhcp(request(daemonSocketPath="/nowhere", priority=5))
    assert (config.priority, config.via) == (5, "br0")


def unparsed(option: str, reason: str) -> str:
    words = f'Can not parse option "{option}": Can not parse option: '
    return f'{words}strconv.ParseUint: parsing "{option}": {reason}'


@pytest.mark.parametrize(
    ("ipam", "said"),
    [
        ({"request": [{"option": "x"}]}, unparsed("x", "invalid syntax")),
        ({"request": [{"option": "256"}]}, unparsed("256", "value out of range")),
        ({"provide": [{"value": "x"}]}, unparsed("", "invalid syntax")),
        ({"provide": [{"option": "12", "value": "x" * 256}]}, f'value too long for option "12": "{"x" * 256}"'),
        ({"provide": [{"option": "12", "fromArg": "A"}]}, 'value too long for option "12" from CNI_ARGS "A": ""'),
    ],
    ids=["name", "number", "empty", "value", "argument"],
)
def test_mistakes_are_told_with_the_sentences_of_the_reference(ipam: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_dhcp(request(args=f"A={'x' * 256}", **ipam))
    assert caught.value.message == f"error calling DHCP.Allocate: {said}"


def test_a_configuration_without_ipam_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="no key 'ipam'"):
        parse_dhcp(replace(request(), config={"name": "net"}))


def test_moments_are_the_servers_where_they_make_sense() -> None:
    def moments(**options: bytes) -> tuple[float, float, float]:
        made = lease(**options)
        return made.renew_at, made.rebind_at, made.expires

    def seconds(number: int) -> bytes:
        return number.to_bytes(4, "big")

    assert moments() == (2800, 4060, 4600)
    assert moments(_51=seconds(100)) == (1050, 1085, 1100)
    assert moments(_51=seconds(100), _58=seconds(10), _59=seconds(20)) == (1010, 1020, 1100)
    assert moments(_51=seconds(100), _58=seconds(200), _59=seconds(300)) == (1050, 1085, 1100)
    assert moments(_51=b"x") == (2800, 4060, 4600)
    assert moments(_51=b"\xff" * 4)[2] == 1000 + 2**32 - 1


def test_routes_without_classes_take_the_place_of_all_others() -> None:
    old = bytes((10, 8, 0, 0, 10, 99, 0, 8))
    router = SERVER.packed
    classless = bytes((16, 10, 1, 10, 99, 0, 9, 8, 11, 0, 0, 0, 0))
    found = lease(_3=router, _33=old).result()
    assert [(str(one.dst), str(one.gw)) for one in found.routes] == [
        ("10.0.0.0/8", "10.99.0.8"),
        ("0.0.0.0/0", "10.99.0.1"),
    ]
    for code in ("_121", "_249"):
        found = lease(_3=router, _33=old, **{code: classless}).result(7)
        assert [(str(one.dst), str(one.gw), one.scope, one.priority) for one in found.routes] == [
            ("10.1.0.0/16", "10.99.0.9", None, 7),
            ("11.0.0.0/8", "0.0.0.0", 253, 7),
        ]
        assert found.ips[0].gateway == SERVER


def test_a_lease_is_the_same_after_its_record() -> None:
    for made in (lease(), lease(_3=SERVER.packed, _121=bytes((0, 10, 99, 0, 9)))):
        assert Lease.decode(made.encode()) == made


@pytest.mark.parametrize("mask", [b"", b"\xff\0\xff\0", b"\xff", b"\0\0\0\0"])
def test_an_address_needs_a_mask(mask: bytes) -> None:
    if mask == b"\0\0\0\0":  # as little a mask as the reference's: the whole of IPv4
        assert lease(_1=mask).address == IPv4Interface("10.99.0.10/0")
        return
    with pytest.raises(PluginError, match="DHCP option Subnet Mask not found in DHCPACK"):
        lease(_1=mask)


def test_a_prolonged_lease_keeps_its_mask() -> None:
    again = granted(ack(_1=b""), SERVER, MAC, 5.0, lease())
    assert again.address == lease().address


def test_waits_are_doubled_with_jitter_up_to_the_longest() -> None:
    exchange, at, waits = Exchange(Client(MAC, b"\0x"), 0.0, longest_wait=8.0), 0.0, []
    for _ in range(8):
        exchange.next(at)
        waits.append(exchange.due - at)
        at = exchange.due
    for wait, base in zip(waits, (0.5, 1, 2, 4, 8, 8, 8, 8), strict=True):
        assert abs(wait - base) <= min(1, base / 2)
    assert len(set(waits)) == 8


def test_an_offer_that_is_never_granted_gives_way_to_another() -> None:
    exchange = Exchange(Client(MAC, b"\0x"), 0.0)
    xid = exchange.next(0.0).message.xid
    offer = {53: bytes((dhcp.OFFER,)), 54: SERVER.packed}
    reply = Message(dhcp.BOOTREPLY, xid, MAC, yiaddr=IPv4Address("10.99.0.10"), options=offer)
    assert exchange.hear(reply, MAC, 0.0) is None
    kinds = [exchange.next(float(at)).message.type for at in range(1, 7)]
    assert kinds == [dhcp.REQUEST] * 4 + [dhcp.DISCOVER] * 2


def test_who_may_use_an_address_names_it_and_no_other() -> None:
    held = lease()
    for aim, destination in ((Aim.RENEW, "10.99.0.1"), (Aim.REBIND, "255.255.255.255")):
        sent = Exchange(Client(MAC, b"\0x"), 0.0, aim, held).next(0.0)
        assert (str(sent.source), str(sent.destination)) == ("10.99.0.10", destination)
        assert (sent.message.ciaddr, {50, 54} & set(sent.message.options)) == (held.address.ip, set())


def test_a_release_says_whose_address_it_is() -> None:
    sent = release_of(Client(MAC, b"\0x", {12: b"name", 55: b"\1"}), lease())
    assert sent.message.options == {53: b"\7", 54: SERVER.packed, 61: b"\0x"}
    assert (str(sent.destination), sent.mac, str(sent.message.ciaddr)) == ("10.99.0.1", MAC, "10.99.0.10")


def test_a_server_is_asked_to_broadcast_while_there_is_no_address() -> None:
    client = Client(MAC, b"\0x", broadcast=True)
    assert Exchange(client, 0.0).next(0.0).message.flags == dhcp.BROADCAST_FLAG
    assert Exchange(client, 0.0, Aim.REBIND, lease()).next(0.0).message.flags == 0
