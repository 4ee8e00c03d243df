"""A network's configuration becomes a model, whatever the letter case of its keys."""

from contextlib import closing
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from nodeplug import CniRequest, InvalidRequest, Netns


class PortMapping(BaseModel):
    host_port: int = Field(alias="hostPort")
    protocol: str = "tcp"


class Runtime(BaseModel):
    mappings: list[PortMapping] = Field(default=[], alias="portMappings")


class Net(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bridge: str = "cni0"
    is_gateway: bool = Field(default=False, alias="isGateway")
    mtu: int = Field(default=0, ge=0)
    zones: dict[str, PortMapping] = {}
    runtime: Runtime = Field(default=Runtime(), alias="runtimeConfig")


def request(**config: Any) -> CniRequest:
    with closing(Netns.current()) as netns:
        return CniRequest(claim="net", network="net", version="1.0.0", config=config, host_netns=netns)


def test_keys_match_in_any_case_at_any_depth() -> None:
    ports = {"PortMappings": [{"HostPort": 80, "Protocol": "udp"}]}
    found = request(BRIDGE="br1", isgateway=True, RuntimeConfig=ports).parse(Net)
    assert (found.bridge, found.is_gateway) == ("br1", True)
    assert found.runtime.mappings[0].host_port == 80
    assert found.runtime.mappings[0].protocol == "udp"


def test_an_alias_for_reading_alone_counts() -> None:
    class Routed(BaseModel):
        default_gateway: bool = Field(validation_alias="isDefaultGateway")

    assert request(isdefaultgateway=True).parse(Routed).default_gateway is True


def test_of_two_spellings_the_later_wins() -> None:
    assert request(mtu=1400, MTU=1500).parse(Net).mtu == 1500


def test_names_of_a_table_keep_their_case() -> None:
    found = request(zones={"North": {"hostport": 1}, "north": {"HOSTPORT": 2}}).parse(Net)
    assert {name: zone.host_port for name, zone in found.zones.items()} == {"North": 1, "north": 2}


def test_what_runtimes_add_is_no_mistake() -> None:
    added = {"cniVersion": "1.0.0", "name": "net", "type": "net", "args": {}, "prevResult": {}, "capabilities": {}}
    assert request(**added).parse(Net) == Net()


def test_every_mistake_is_told_with_its_key_what_is_due_and_what_was_found() -> None:
    wrong = {"mtu": -1, "isGateway": "maybe", "vlan": 7, "runtimeConfig": {"portMappings": [{}]}}
    with pytest.raises(InvalidRequest) as caught:
        request(**wrong).parse(Net)
    said = str(caught.value).split("; ")
    assert sorted(said) == [
        "key 'isGateway': input should be a valid boolean, unable to interpret input, found 'maybe'",
        "key 'mtu': input should be greater than or equal to 0, found -1",
        "key 'runtimeConfig.portMappings[0].hostPort': field required",
        "key 'vlan': extra inputs are not permitted, found 7",
    ]


def test_a_long_value_is_cut_in_the_message() -> None:
    with pytest.raises(InvalidRequest) as caught:
        request(mtu="x" * 10_000).parse(Net)
    assert len(str(caught.value)) < 300


def test_null_counts_as_absent() -> None:
    assert request(mtu=None, runtimeConfig={"portMappings": None}).parse(Net) == Net()


def test_null_is_a_value_where_a_model_requires_the_key_and_takes_none() -> None:
    class Route(BaseModel):
        gw: str | None

    assert request(GW=None).parse(Route) == Route(gw=None)


def test_names_of_a_table_keep_their_case_where_it_is_optional_or_in_a_list() -> None:
    class Nested(BaseModel):
        zones: dict[str, PortMapping] | None = None
        lists: list[dict[str, PortMapping]] = []

    table = {"HOSTPORT": {"hostport": 1}}
    found = request(Zones=table, lists=[table]).parse(Nested)
    assert found.zones is not None
    assert [found.zones["HOSTPORT"].host_port, found.lists[0]["HOSTPORT"].host_port] == [1, 1]


def test_what_a_validator_says_follows_the_key() -> None:
    class Even(BaseModel):
        vlan: int = 0

        @field_validator("vlan")
        @classmethod
        def _is_even(cls, vlan: int) -> int:
            if vlan % 2:
                raise ValueError("must be even")
            return vlan

    with pytest.raises(InvalidRequest) as caught:
        request(vlan=3).parse(Even)
    assert str(caught.value) == "key 'vlan': must be even, found 3"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)

    bridge: str = "cni0"
    mtu: int = Field(default=0, ge=0)


def test_requests_with_the_same_keys_share_a_frozen_model_whatever_their_containers_are() -> None:
    one = request(bridge="br0", prevResult={"ips": []}).parse(Frozen)
    assert request(bridge="br0", prevResult={"ips": [1]}, runtimeConfig={"ips": ["10.0.0.1"]}).parse(Frozen) is one
    assert request(bridge="br1").parse(Frozen).bridge == "br1"


def test_a_model_that_can_be_changed_is_nobody_elses() -> None:
    assert request(bridge="br0").parse(Net) is not request(bridge="br0").parse(Net)


def test_a_mistake_is_told_each_time() -> None:
    for _ in range(2):
        with pytest.raises(InvalidRequest, match="key 'mtu'"):
            request(mtu=-1).parse(Frozen)


def test_values_that_are_no_json_are_read_as_they_are() -> None:
    assert request(bridge="br0", mtu=1500, other={1, 2}).parse(Frozen).mtu == 1500
