from collections.abc import Iterator
from typing import Any

import pytest

from nodeplug import CniAdd, CniDns, InvalidEnvironment, InvalidRequest, Netns
from nodeplug_net.attachment import LABEL_LIMIT, Attachment, network_label
from nodeplug_net.bridge.config import BridgeConfig, parse_bridge
from nodeplug_net.nftables.masquerade import EVERY


@pytest.fixture
def here() -> Iterator[Netns]:
    netns = Netns.current()
    yield netns
    netns.close()


def parse(here: Netns, cni_args: dict[str, str] | None = None, /, **config: Any) -> BridgeConfig:
    return parse_bridge(
        CniAdd(
            claim="x",
            network="net",
            version="1.0.0",
            config=config,
            host_netns=here,
            netns=here,
            container_id="c",
            ifname="eth0",
            args=cni_args or {},
        )
    )


def test_the_defaults_are_those_of_the_reference(here: Netns) -> None:
    assert parse(here) == BridgeConfig(bridge="cni0")


def test_a_default_gateway_is_a_gateway(here: Netns) -> None:
    assert parse(here, isDefaultGateway=True).is_gateway


def test_keys_match_without_regard_to_case(here: Netns) -> None:
    config = parse(here, Bridge="br7", IPMASQ=True, MTU=1400, hairpinmode=True, Ipam={"Type": "host-local"})
    assert (config.bridge, config.masquerading, config.mtu, config.hairpin, config.ipam) == (
        "br7",
        EVERY,
        1400,
        True,
        "host-local",
    )


def test_hairpin_and_promiscuous_mode_exclude_each_other(here: Netns) -> None:
    with pytest.raises(InvalidRequest, match="hairpin mode and promiscuous mode"):
        parse(here, hairpinMode=True, promiscMode=True)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("vlan", 0),
        ("vlanTrunk", []),
        ("macspoofchk", False),
        ("preserveDefaultVlan", False),
        ("ipMasqBackend", "nftables"),
        ("ipMasqBackend", "iptables"),
        ("ipMasqBackend", "another, which nobody uses without ipMasq"),
        ("enabledad", None),
        ("somethingElse", 5),
    ],
)
def test_a_value_that_asks_for_nothing_is_accepted(here: Netns, key: str, value: Any) -> None:
    assert parse(here, **{key: value}) == BridgeConfig()


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("isGateway", "yes"),
        ("mtu", -1),
        ("mtu", True),
        ("mtu", "1500"),
        ("bridge", "x" * 16),
        ("bridge", "a/b"),
        ("bridge", ".."),
        ("bridge", "br%d"),
        ("bridge", "brücke-überall1"),
        ("bridge", "br\ud800"),
        ("ipam", []),
        ("ipMasqBackend", ["nftables"]),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_its_key(here: Netns, key: str, value: Any) -> None:
    with pytest.raises(InvalidRequest, match=key):
        parse(here, **{key: value})


def test_every_mistake_is_told_at_once(here: Netns) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse(here, MTU=-1, isgateway="yes", ipam={"type": "../host-local"})
    assert sorted(refusal.value.message.removeprefix("key ").split("; key ")) == [
        "'ipam.type': must be the name of a plugin, found '../host-local'",
        "'isGateway': input should be a valid boolean, found 'yes'",
        "'mtu': input should be greater than or equal to 0, found -1",
    ]


def test_a_trunk_has_each_number_once_and_in_order(here: Netns) -> None:
    config = parse(here, vlanTrunk=[{"id": 7, "minID": 3, "maxID": 5}, {"id": 4}, {"id": 1}])
    assert (config.trunk, config.filters_vlans, config.gateway_interface) == ((1, 3, 4, 5, 7), True, "cni0")


def test_the_gateway_of_a_vlan_has_an_interface_of_its_own(here: Netns) -> None:
    assert parse(here, bridge="br0", vlan=100).gateway_interface == "br0.100"


def test_keys_about_the_interface_are_read_under_their_names_in_the_reference(here: Netns) -> None:
    config = parse(here, macspoofchk=True, portIsolation=True, disableContainerInterface=True, enabledad=True)
    assert (config.mac_spoof_check, config.isolated, config.interface_stays_down, config.dad) == (True,) * 4


def test_the_runtime_wins_over_args_which_win_over_cni_args(here: Netns) -> None:
    one, two, three = "02:00:00:00:00:01", "02:00:00:00:00:02", "02-00-00-00-00-0A"
    assert parse(here, {"MAC": one}).mac == one
    assert parse(here, {"MAC": one}, args={"cni": {"mac": two}}).mac == two
    config = parse(here, {"MAC": one}, args={"cni": {"mac": two}}, runtimeConfig={"mac": three})
    assert config.mac == "02:00:00:00:00:0a"


def test_a_bad_mac_is_refused_where_it_stands(here: Netns) -> None:
    with pytest.raises(InvalidEnvironment, match="address 02:00: invalid MAC address") as refusal:
        parse(here, {"MAC": "02:00"})
    assert "CNI_ARGS" in refusal.value.details
    with pytest.raises(InvalidRequest, match="address 02:00: invalid MAC address") as refused:
        parse(here, runtimeConfig={"mac": "02:00"})
    assert "'mac'" in refused.value.details


def test_a_mac_in_groups_of_four_digits_is_read_as_the_reference_does(here: Netns) -> None:
    assert parse(here, runtimeConfig={"mac": "0200.00FF.000a"}).mac == "02:00:00:ff:00:0a"


@pytest.mark.parametrize("dns", [None, {}, {"nameservers": None}, {"domain": ""}])
def test_dns_that_says_nothing_does_not_override_that_of_ipam(here: Netns, dns: Any) -> None:
    assert parse(here, dns=dns).dns is None


@pytest.mark.parametrize("dns", [{"nameservers": []}, {"search": []}, {"options": []}, {"domain": "a"}])
def test_an_empty_list_of_dns_overrides_that_of_ipam(here: Netns, dns: Any) -> None:
    assert parse(here, dns=dns).dns == CniDns(domain=dns.get("domain", ""))


def test_a_host_veth_has_a_name_that_follows_from_its_attachment_alone() -> None:
    attachment = Attachment("net", "c1", "eth0")
    assert attachment.host_veth == Attachment("net", "c1", "eth0").host_veth
    others = {Attachment("net", "c1", "eth1"), Attachment("net", "c2", "eth0"), Attachment("nets", "c1", "eth0")}
    assert attachment.host_veth not in {other.host_veth for other in others}


@pytest.mark.parametrize("length", [1, 36, 37, 200])
def test_a_label_is_short_and_tells_networks_apart(length: int) -> None:
    one, other = Attachment("n" * length, "c" * 100, "eth0"), Attachment("n" * (length + 1), "c" * 100, "eth0")
    assert len(one.label) <= LABEL_LIMIT
    assert one.label.startswith(network_label(one.network))
    assert not other.label.startswith(network_label(one.network))
