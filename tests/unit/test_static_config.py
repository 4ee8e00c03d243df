from collections.abc import Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address
from typing import Any

import pytest

from nodeplug import CniAdd, CniCheck, CniDns, CniResult, IncompatibleVersion, InvalidEnvironment, InvalidRequest, Netns
from nodeplug_net.ipam.static_config import check_static, parse_static

V4 = {"address": "10.1.0.5/16", "gateway": "10.1.0.1"}


@pytest.fixture
def here() -> Iterator[Netns]:
    netns = Netns.current()
    yield netns
    netns.close()


def request(here: Netns, ipam: Mapping[str, Any] | None, text: str = "", **more: Any) -> CniAdd:
    return CniAdd(
        claim="x",
        network="net",
        version=more.get("cniVersion", "1.0.0"),
        config={"name": "net", "ipam": ipam, **more},
        host_netns=here,
        netns=here,
        container_id="c",
        ifname="eth0",
        args_text=text,
    )


def given(result: CniResult) -> list[tuple[str, str]]:
    return [(str(ip.address), str(ip.gateway)) for ip in result.ips]


def test_addresses_routes_and_dns_of_the_configuration_are_the_result(here: Netns) -> None:
    ipam = {"addresses": [V4], "routes": [{"dst": "0.0.0.0/0"}], "dns": {"domain": "a", "search": ["b"]}}
    result = parse_static(request(here, ipam))
    assert given(result) == [("10.1.0.5/16", "10.1.0.1")]
    assert [str(route.dst) for route in result.routes] == ["0.0.0.0/0"]
    assert result.dns == CniDns(domain="a", search=("b",))


def test_addresses_of_the_arguments_come_after_those_of_the_configuration(here: Netns) -> None:
    asked = request(here, {"addresses": [V4]}, "IP=10.2.0.5/16, fd00::5/64;GATEWAY=fd00::1,10.1.0.9")
    expected = [("10.1.0.5/16", "10.1.0.1"), ("10.2.0.5/16", "None"), ("fd00::5/64", "fd00::1")]
    assert given(parse_static(asked)) == expected


def test_addresses_of_the_runtime_take_the_place_of_all_others(here: Netns) -> None:
    places = {"args": {"cni": {"ips": ["10.3.0.5/16"]}}, "runtimeConfig": {"ips": ["10.4.0.5/16"]}}
    assert given(parse_static(request(here, {"addresses": [V4]}, "IP=10.2.0.5/16", **places))) == [
        ("10.4.0.5/16", "None")
    ]
    del places["runtimeConfig"]
    assert given(parse_static(request(here, {"addresses": [V4]}, "", **places))) == [("10.3.0.5/16", "None")]


@pytest.mark.parametrize("text", ["10.1.0.5", "10.1.0.5/33", "10.1.0.5/255.255.0.0", "", "x/8"])
def test_an_address_needs_a_prefix_length(here: Netns, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^the 'address' field is expected to be in CIDR notation, got: "):
        parse_static(request(here, {"addresses": [{"address": text}]}))
    with pytest.raises(InvalidRequest, match=r"^an entry in the 'ips' field is NOT in CIDR notation, got: "):
        parse_static(request(here, {}, runtimeConfig={"ips": [text]}))


def test_arguments_that_are_no_addresses_are_refused(here: Netns) -> None:
    with pytest.raises(InvalidEnvironment, match=r"the 'ip' field is expected .*, got: '10\.1\.0\.5'"):
        parse_static(request(here, {}, "IP=10.1.0.5"))
    with pytest.raises(InvalidEnvironment, match="invalid gateway address: x"):
        parse_static(request(here, {}, "GATEWAY=x"))


@pytest.mark.parametrize("version", ["", "0.1.0", "0.2.0"])
def test_an_old_version_has_one_address_of_each_family(here: Netns, version: str) -> None:
    two = {"addresses": [V4, {"address": "fd00::5/64"}]}
    assert len(parse_static(request(here, two, cniVersion=version)).ips) == 2
    with pytest.raises(IncompatibleVersion, match=f"CNI version {version} does not support more than 1 address"):
        parse_static(request(here, {"addresses": [V4, V4]}, cniVersion=version))


def test_check_compares_the_gateway_alone(here: Netns) -> None:
    asked = request(here, {"addresses": [V4]})
    result = parse_static(asked)
    checked = CniCheck(
        claim="x",
        network="net",
        version="1.0.0",
        config=asked.config,
        host_netns=here,
        netns=here,
        container_id="c",
        ifname="eth0",
        prev_result=result,
    )
    check_static(checked)
    check_static(replace(checked, prev_result=CniResult()))
    moved = replace(result, ips=(replace(result.ips[0], gateway=ip_address("10.1.0.9")),))
    with pytest.raises(Exception, match=r"^static: Failed to match addr 10\.1\.0\.5 on interface eth0; gateway"):
        check_static(replace(checked, prev_result=moved))
