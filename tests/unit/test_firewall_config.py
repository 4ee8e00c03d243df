from collections.abc import Iterator
from ipaddress import ip_address, ip_interface
from typing import Any

import pytest

from nodeplug import CniAdd, CniInterface, CniIp, CniResult, InvalidRequest, Netns
from nodeplug_net.firewall.config import Wanted, parse_firewall

RESULT = CniResult(
    interfaces=(CniInterface("br0"), CniInterface("veth1"), CniInterface("eth0", sandbox="netns")),
    ips=(
        CniIp(ip_interface("10.0.0.2/24"), interface=2),
        CniIp(ip_interface("10.0.0.2/16")),
        CniIp(ip_interface("2001:db8:1::2/64"), interface=2),
    ),
)
PLUGINS = '"firewall" plugin with "bridge"'
ADDRESSES = (ip_address("10.0.0.2"), ip_address("2001:db8:1::2"))


@pytest.fixture
def here() -> Iterator[Netns]:
    netns = Netns.current()
    yield netns
    netns.close()


def wanted(here: Netns, result: CniResult | None = RESULT, **config: Any) -> Wanted:
    request = CniAdd(
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
    return parse_firewall(request)


def test_each_address_of_the_result_counts_once_whatever_interface_has_it(here: Netns) -> None:
    assert wanted(here) == Wanted(ADDRESSES)


@pytest.mark.parametrize("backend", [None, "", "iptables", "nonsense"])
def test_a_backend_that_the_reference_takes_changes_nothing(here: Netns, backend: str | None) -> None:
    assert wanted(here, backend=backend, firewalldZone="public") == Wanted(ADDRESSES)


@pytest.mark.parametrize(
    ("policy", "found"),
    [
        ("", ("", False)),
        (None, ("", False)),
        ("open", ("", False)),
        ("same-bridge", ("br0", False)),
        ("isolated", ("br0", True)),
    ],
)
def test_a_policy_is_about_the_first_interface_of_the_result(
    here: Netns, policy: str | None, found: tuple[str, bool]
) -> None:
    conf = wanted(here, ingressPolicy=policy)
    assert (conf.bridge, conf.isolated) == found


def test_keys_count_in_any_letter_case(here: Netns) -> None:
    assert wanted(here, INGRESSPOLICY="isolated", iptablesadminchainname="MINE") == Wanted(
        ADDRESSES, "MINE", "br0", isolated=True
    )


@pytest.mark.parametrize(
    ("result", "keys", "sentence"),
    [
        (None, {}, "missing prevResult from earlier plugin"),
        (RESULT, {"ingressPolicy": "Open"}, 'unknown ingress policy: "Open"'),
        (
            CniResult(ips=RESULT.ips[1:2]),
            {"ingressPolicy": "isolated"},
            f'interface needs to be set for ingress policy "isolated", make sure to chain {PLUGINS}',
        ),
        (CniResult(interfaces=(CniInterface(""),)), {"ingressPolicy": "same-bridge"}, "got empty bridge name"),
    ],
)
def test_a_mistake_is_told_in_the_references_words(
    here: Netns, result: CniResult | None, keys: dict[str, str], sentence: str
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        wanted(here, result, **keys)
    assert str(caught.value) == sentence


@pytest.mark.parametrize("name", ["FORWARD", "CNI-FORWARD", "DROP", "-x", "!x", "a b", "x\n", "x" * 29])
def test_a_chain_that_iptables_does_not_take_is_refused(here: Netns, name: str) -> None:
    with pytest.raises(InvalidRequest, match="key 'iptablesAdminChainName' is the name of a chain of your own"):
        wanted(here, iptablesAdminChainName=name)


def test_firewalld_is_refused(here: Netns) -> None:
    with pytest.raises(InvalidRequest, match='backend "firewalld" is not served'):
        wanted(here, backend="firewalld")


def test_a_bridge_whose_name_no_interface_can_have_is_refused(here: Netns) -> None:
    result = CniResult(interfaces=(CniInterface("b" * 16),), ips=RESULT.ips)
    with pytest.raises(InvalidRequest, match="is a bridge of this host"):
        wanted(here, result, ingressPolicy="isolated")


def test_what_is_wanted_survives_a_record(here: Netns) -> None:
    made = wanted(here, ingressPolicy="isolated", iptablesAdminChainName="MINE")
    assert Wanted.decode(made.encode()) == made
