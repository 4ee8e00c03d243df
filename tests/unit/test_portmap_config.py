from collections.abc import Iterator, Sequence
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from nodeplug import CniAdd, CniInterface, CniIp, CniResult, InvalidRequest, Netns
from nodeplug_net.portmap.conditions import Condition, parse_conditions
from nodeplug_net.portmap.config import Forward, Wanted, asks_for_ports, parse_portmap

RESULT = CniResult(
    interfaces=(CniInterface("host"), CniInterface("eth0", sandbox="netns")),
    ips=(
        CniIp(ip_interface("10.0.0.1/24"), interface=0),
        CniIp(ip_interface("2001:db8:1::2/64"), interface=1),
        CniIp(ip_interface("10.0.0.2/24"), interface=1),
        CniIp(ip_interface("10.0.0.3/24"), interface=1),
    ),
)
TCP = {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}


@pytest.fixture
def here() -> Iterator[Netns]:
    netns = Netns.current()
    yield netns
    netns.close()


def request(here: Netns, result: CniResult | None = RESULT, **config: Any) -> CniAdd:
    return CniAdd(
        claim="x",
        network="net",
        version="1.0.0",
        config=config,
        host_netns=here,
        netns=here,
        container_id="c",
        ifname="eth0",
        prev_result=result,
    )


def forwards(here: Netns, *mappings: dict[str, Any], result: CniResult = RESULT, **keys: Any) -> Sequence[Forward]:
    config = {"runtimeConfig": {"portMappings": list(mappings)}, **keys}
    return parse_portmap(request(here, result, **config)).mappings().forwards


def test_ports_lead_to_the_first_address_of_each_version_on_the_interface(here: Netns) -> None:
    assert forwards(here, TCP) == (
        Forward(6, None, 8080, ip_address("10.0.0.2"), 80),
        Forward(6, None, 8080, ip_address("2001:db8:1::2"), 80),
    )


def test_an_address_without_an_interface_counts(here: Netns) -> None:
    result = CniResult(ips=(CniIp(ip_interface("10.0.0.9/24")),))
    assert [one.target for one in forwards(here, TCP, result=result)] == [ip_address("10.0.0.9")]


def test_an_address_whose_interface_does_not_exist_counts_as_in_the_reference(here: Netns) -> None:
    result = CniResult(ips=(CniIp(ip_interface("10.0.0.9/24"), interface=7),))
    assert [one.target for one in forwards(here, TCP, result=result)] == [ip_address("10.0.0.9")]


def test_an_address_of_the_host_forwards_its_own_version_alone(here: Netns) -> None:
    found = forwards(here, {**TCP, "hostIP": "192.0.2.1"}, {**TCP, "hostPort": 8081, "hostIP": "::"})
    assert [(one.host_ip, one.version) for one in found] == [(ip_address("192.0.2.1"), 4), (None, 6)]


def test_an_ipv4_address_written_for_ipv6_is_one_of_ipv4(here: Netns) -> None:
    (found,) = forwards(here, {**TCP, "hostIP": "::ffff:192.0.2.1"})
    assert found.host_ip == ip_address("192.0.2.1")


def test_a_mapping_that_is_named_twice_counts_once(here: Netns) -> None:
    assert len(forwards(here, TCP, TCP)) == 2


def test_keys_match_without_regard_to_case(here: Netns) -> None:
    conf: dict[str, Any] = {
        "RuntimeConfig": {"PORTMAPPINGS": [{"HostPort": 1, "ContainerPort": 2, "Protocol": "UDP", "HostIP": "::1"}]}
    }
    (found,) = parse_portmap(request(here, **conf)).mappings().forwards
    assert found == Forward(17, ip_address("::1"), 1, ip_address("2001:db8:1::2"), 2)


@pytest.mark.parametrize(
    ("keys", "near"),
    [
        ({}, {4: ["10.0.0.2/24", "127.0.0.1/8"], 6: ["2001:db8:1::2/64"]}),
        ({"masqAll": True}, {4: ["0.0.0.0/0"], 6: ["::/0"]}),
        ({"snat": False}, {}),
        ({"snat": False, "masqAll": True}, {}),
        ({"snat": None}, {4: ["10.0.0.2/24", "127.0.0.1/8"], 6: ["2001:db8:1::2/64"]}),
    ],
)
def test_keys_say_whose_connections_are_masqueraded(
    here: Netns, keys: dict[str, Any], near: dict[int, list[str]]
) -> None:
    found = parse_portmap(request(here, runtimeConfig={"portMappings": [TCP]}, **keys)).mappings().near
    assert {version: [str(one) for one in networks] for version, networks in found} == near


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"markMasqBit": 5, "externalSetMarkChain": "X"}, "Cannot specify externalSetMarkChain and markMasqBit"),
        ({"markMasqBit": 32}, "MasqMarkBit must be between 0 and 31"),
        ({"markMasqBit": -1}, "MasqMarkBit must be between 0 and 31"),
        ({"backend": "pf"}, 'unrecognized backend "pf"'),
        (
            {
                "backend": "iptables",
                "conditionsV4": ["ip", "saddr", "1.2.3.4"],
                "conditionsV6": ["ip6", "saddr", "12::34"],
            },
            (
                "iptables backend was requested but configuration contains nftables-specific options "
                "[conditionsV4 conditionsV6]"
            ),
        ),
        (
            {"backend": "nftables", "externalSetMarkChain": "KUBE-MARK-MASQ", "conditionsV6": ["!", "-s", "12::34"]},
            (
                "nftables backend was requested but configuration contains iptables-specific options "
                "[externalSetMarkChain conditionsV6]"
            ),
        ),
    ],
)
def test_wrong_keys_are_refused_in_the_references_words(here: Netns, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_portmap(request(here, **keys))
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    ("keys", "sentence"),
    [
        ({"hostPort": 0}, "Invalid host port number: 0"),
        ({"hostPort": -80}, "Invalid host port number: -80"),
        ({"hostPort": 65536}, "Invalid host port number: 65536"),
        ({"containerPort": 0}, "Invalid container port number: 0"),
        ({"containerPort": 0, "hostPort": 0}, "Invalid container port number: 0"),
        ({"protocol": "icmp"}, "key 'portMappings': protocol is one of tcp, udp, sctp, found 'icmp'"),
        ({"hostIP": "here"}, "key 'portMappings': hostIP is an address of this host, found 'here'"),
    ],
)
def test_a_wrong_mapping_is_refused_also_without_an_address(here: Netns, keys: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_portmap(request(here, None, runtimeConfig={"portMappings": [{**TCP, **keys}]}))
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "keys",
    [
        {"backend": "iptables", "externalSetMarkChain": "KUBE-MARK-MASQ"},
        {"externalSetMarkChain": "KUBE-MARK-MASQ"},
        {"backend": "nftables", "markMasqBit": 0},
        {"capabilities": {"portMappings": True}, "snat": True},
        {"conditionsV4": [], "conditionsV6": [""]},
    ],
)
def test_configurations_of_the_reference_are_accepted(here: Netns, keys: dict[str, Any]) -> None:
    assert parse_portmap(request(here, **keys)).mappings().forwards == ()


@pytest.mark.parametrize(
    ("words", "conditions"),
    [
        (["-s", "10.0.0.0/8"], [("saddr", "10.0.0.0/8", "", False)]),
        (["!", "-d", "192.0.2.1"], [("daddr", "192.0.2.1/32", "", True)]),
        (
            ["-i", "eth+", "!", "--source", "10.1.2.3/8"],
            [("iifname", None, "eth*", False), ("saddr", "10.0.0.0/8", "", True)],
        ),
        (["ip", "saddr", "10.0.0.1"], [("saddr", "10.0.0.1/32", "", False)]),
        (
            ["ip saddr == 10.0.0.1 ip daddr != 10.0.0.0/8"],
            [("saddr", "10.0.0.1/32", "", False), ("daddr", "10.0.0.0/8", "", True)],
        ),
        (["meta", "iifname", "!=", '"eth0"'], [("iifname", None, "eth0", True)]),
    ],
)
def test_conditions_of_both_programs_are_read(words: list[str], conditions: list[tuple[Any, ...]]) -> None:
    found = parse_conditions("conditionsV4", words, 4)
    shown = [(one.field, one.network and str(one.network), one.interface, one.inverted) for one in found]
    assert shown == conditions


@pytest.mark.parametrize(
    "words",
    [
        ["-m", "addrtype", "--dst-type", "LOCAL"],
        ["-s"],
        ["-s", "12::34"],
        ["!"],
        ["ip", "saddr", "{ 10.0.0.1, 10.0.0.2 }"],
        ["ip6", "saddr", "12::34"],
        ["tcp", "dport", "80"],
        ["ip"],
        ["-i", "+"],
        ["-i", "a-name-of-16-byte"],
    ],
)
def test_conditions_that_are_not_understood_are_refused(words: list[str]) -> None:
    with pytest.raises(InvalidRequest, match=r"key 'conditionsV4': found '.+', which is not understood; give"):
        parse_conditions("conditionsV4", words, 4)


def test_conditions_of_ipv6_are_for_ipv6_alone(here: Netns) -> None:
    conf: dict[str, Any] = {"runtimeConfig": {"portMappings": [TCP]}, "conditionsV6": ["ip6", "daddr", "2001:db8::/32"]}
    ((version, (found,)),) = parse_portmap(request(here, **conf)).mappings().conditions
    assert (version, found.field, str(found.network)) == (6, "daddr", "2001:db8::/32")
    assert isinstance(found, Condition)


def test_what_is_wanted_survives_a_record(here: Netns) -> None:
    conf: dict[str, Any] = {
        "runtimeConfig": {"portMappings": [{**TCP, "hostIP": "127.0.0.1"}]},
        "masqAll": True,
        "conditionsV4": ["-i", "lo"],
    }
    wanted = parse_portmap(request(here, **conf))
    assert Wanted.decode(wanted.encode()).mappings() == wanted.mappings()


@pytest.mark.parametrize(
    ("config", "asked"),
    [
        ({}, False),
        ({"runtimeConfig": {}}, False),
        ({"runtimeConfig": {"portMappings": []}}, False),
        ({"runtimeConfig": None}, False),
        ({"runtimeConfig": {"portmappings": "junk"}}, True),
        ({"RUNTIMECONFIG": {"PortMappings": [{}]}}, True),
    ],
)
def test_whether_ports_are_asked_for_is_known_of_any_configuration(
    here: Netns, config: dict[str, Any], asked: bool
) -> None:
    assert asks_for_ports(request(here, **config)) is asked
