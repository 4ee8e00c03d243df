"""What the annotation about networks says: a table of both forms, and what is refused."""

import json
from ipaddress import ip_address
from typing import Any

import pytest

from nodeplug import InvalidRequest, NotSupported
from nodeplug_net.networks.selection import Selection, parse_networks


def element(**keys: Any) -> str:
    return json.dumps([{"name": "blue", **{key.replace("_", "-"): value for key, value in keys.items()}}])


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("  \n", []),
        ("blue", [Selection("pods", "blue")]),
        ("other/blue", [Selection("other", "blue")]),
        ("blue@eth7", [Selection("pods", "blue", "eth7")]),
        ("other/blue@eth7, green", [Selection("other", "blue", "eth7"), Selection("pods", "green")]),
        ("blue,blue", [Selection("pods", "blue"), Selection("pods", "blue")]),
        ("[]", []),
        (element(), [Selection("pods", "blue")]),
        (element(namespace="other"), [Selection("other", "blue")]),
        (element(interface="eth7"), [Selection("pods", "blue", "eth7")]),
        (element(interfaceRequest="eth7"), [Selection("pods", "blue", "eth7")]),
        (element(ips=["10.0.0.7/24", "::7"]), [Selection("pods", "blue", runtime={"ips": ["10.0.0.7/24", "::7"]})]),
        (element(mac="02-00-00-00-00-0A"), [Selection("pods", "blue", runtime={"mac": "02:00:00:00:00:0a"})]),
        (
            element(default_route=["10.0.0.1", "fd00::1"]),
            [Selection("pods", "blue", gateways=(ip_address("10.0.0.1"), ip_address("fd00::1")))],
        ),
        (element(default_route=[]), [Selection("pods", "blue")]),
        (element(default_route=None, ips=None, mac=""), [Selection("pods", "blue")]),
        (
            element(bandwidth={"ingressRate": 1000, "ingressBurst": 2000}),
            [Selection("pods", "blue", runtime={"bandwidth": {"ingressRate": 1000, "ingressBurst": 2000}})],
        ),
        (
            element(portMappings=[{"hostPort": 80, "containerPort": 8080}]),
            [Selection("pods", "blue", runtime={"portMappings": [{"hostPort": 80, "containerPort": 8080}]})],
        ),
        (element(cni_args={"color": "blue"}), [Selection("pods", "blue", cni_args={"color": "blue"})]),
    ],
)  # fmt: skip
def test_an_annotation_names_networks(text: str, found: list[Selection]) -> None:
    assert list(parse_networks(text, "pods")) == found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("blue,,green", "'' is no network"),
        ("Blue", "'Blue' is no network"),
        ("a/b/c", "'a/b/c' is no network"),
        ("../etc", "'../etc' is no network"),
        ("blue@", "'blue@' is no network"),
        ("blue@a/b", "'a/b' cannot be the name of an interface"),
        ("blue@abcdefghijklmnop", "cannot be the name of an interface: 1 to 15 characters"),
        ("[", "is no JSON"),
        ('{"name": "blue"}', "must be a list in JSON"),
        ('["blue"]', "[0] must be an object with a name, and is 'blue'"),
        ('[{"namespace": "other"}]', "name must be that of an object, and is None"),
        (element(namespace="a/b"), "namespace must be that of an object"),
        (element(interface="."), "'.' cannot be the name of an interface"),
        (element(ips="10.0.0.7"), "ips must be a list"),
        (element(ips=["10.0.0.700"]), "ips has '10.0.0.700', which is no address"),
        (element(ips=[7]), "ips has 7, which is no address"),
        (element(mac="zz"), "mac must be like 02:00:00:00:00:01, and is 'zz'"),
        (element(mac=7), "mac must be like 02:00:00:00:00:01, and is 7"),
        (element(default_route=["here"]), "default-route has 'here', which is no address"),
        (element(default_route=["10.0.0.1", "10.0.0.2"]), "two gateways of IPv4"),
        (element(bandwidth={"ingress": 1}), "bandwidth has {'ingress': 1}; it takes numbers for ingressRate"),
        (element(bandwidth={"ingressRate": "1M"}), "bandwidth has {'ingressRate': '1M'}"),
        (element(portMappings={"hostPort": 80}), "portMappings must be a list"),
        (element(portMappings=[80]), "portMappings must be an object"),
        (element(cni_args=["x"]), "cni-args must be an object"),
        (element(ip=["10.0.0.7"]), "unknown key 'ip'; known: name, namespace, interface, ips"),
    ],
)
def test_a_mistake_in_an_annotation_is_told_in_a_sentence(text: str, said: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_networks(text, "pods")
    assert said in str(refused.value)
    assert "k8s.v1.cni.cncf.io/networks" in str(refused.value)


@pytest.mark.parametrize("key", ["infiniband-guid", "ipam-claim-reference", "deviceID"])
def test_what_nobody_can_do_is_refused_by_its_name(key: str) -> None:
    with pytest.raises(NotSupported) as refused:
        parse_networks(json.dumps([{"name": "blue", key: "x"}]), "pods")
    assert repr(key) in str(refused.value)


def test_two_networks_cannot_both_have_the_default_route() -> None:
    two = [{"name": name, "default-route": ["10.0.0.1"]} for name in ("blue", "green")]
    with pytest.raises(InvalidRequest, match="two gateways of IPv4"):
        parse_networks(json.dumps(two), "pods")
