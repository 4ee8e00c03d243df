"""Where connections to a host port go."""

import subprocess

import pytest
from tests.node.outside import HOST
from tests.node.portmap.lab import DATAGRAM, STREAM, Lab, mapping, serve
from tests.programs import need

from nodeplug.testing.scratch_cni import run_in

KINDS = {"tcp": STREAM, "udp": DATAGRAM}


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("protocol", KINDS)
def test_who_is_outside_reaches_the_container_and_keeps_its_address(lab: Lab, protocol: str, version: int) -> None:
    lab.add("c1", mapping(8080, protocol=protocol))
    lab.serve("c1", kind=KINDS[protocol])
    answer = lab.ask(lab.outside, 8080, HOST[version], KINDS[protocol])
    assert answer == f"c1 {'192.0.2.2' if version == 4 else '2001:db8::2'}"


@pytest.mark.parametrize("version", [4, 6])
def test_a_container_reaches_itself_through_the_host_port(lab: Lab, version: int) -> None:
    lab.network = {**lab.network, "hairpinMode": True}
    lab.add("c1", mapping(8080))
    lab.serve("c1")
    assert lab.ask(lab.pods["c1"], 8080, HOST[version]).startswith("c1 ")


@pytest.mark.parametrize("version", [4, 6])
def test_a_neighbour_on_the_same_bridge_reaches_the_container_through_the_host_port(lab: Lab, version: int) -> None:
    lab.add("c1", mapping(8080))
    lab.serve("c1")
    lab.attach("c2")
    assert lab.ask(lab.pods["c2"], 8080, HOST[version]).startswith("c1 ")


@pytest.mark.parametrize("protocol", KINDS)
@pytest.mark.parametrize("address", ["127.0.0.1", "192.0.2.1", "2001:db8::1"])
def test_the_host_reaches_the_container_by_each_of_its_addresses(lab: Lab, protocol: str, address: str) -> None:
    lab.add("c1", mapping(8080, protocol=protocol))
    lab.serve("c1", kind=KINDS[protocol])
    assert lab.ask(None, 8080, address, KINDS[protocol]).startswith("c1 ")


def test_a_host_ip_forwards_connections_to_that_address_alone(lab: Lab) -> None:
    lab.add("c1", mapping(8080, hostIP="192.0.2.1"))
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    assert lab.ask(None, 8080, "127.0.0.1") == ""
    assert lab.ask(lab.outside, 8080, HOST[6]) == ""


def test_an_unspecified_host_ip_stands_for_each_address_of_its_version(lab: Lab) -> None:
    lab.add("c1", mapping(8080, hostIP="0.0.0.0"))
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    assert lab.ask(None, 8080, "127.0.0.1").startswith("c1 ")
    assert lab.ask(lab.outside, 8080, HOST[6]) == ""


def test_two_host_ips_lead_the_same_port_to_two_containers(lab: Lab) -> None:
    lab.add("c1", mapping(8080, hostIP="192.0.2.1"))
    lab.add("c2", mapping(8080, hostIP="127.0.0.1"))
    lab.serve("c1")
    lab.serve("c2")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    assert lab.ask(None, 8080, "127.0.0.1").startswith("c2 ")


def test_a_container_reaches_the_same_port_of_somebody_else(lab: Lab) -> None:
    """Only connections to the host itself are forwarded."""
    lab.add("c1", mapping(8080))
    serve(lab.outside, 8080, STREAM, b"outside")
    lab.serve("c1")
    assert lab.ask(None, 8080, "192.0.2.2") == "outside 192.0.2.1"


def test_with_masq_all_the_container_sees_the_host_as_the_sender(lab: Lab) -> None:
    lab.add("c1", mapping(8080), masqAll=True)
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 10.88.0.1"
    assert lab.ask(lab.outside, 8080, HOST[6]) == "c1 fd00:88::1"


def test_who_asks_the_container_itself_keeps_its_address(lab: Lab) -> None:
    lab.add("c1", mapping(80), masqAll=True)
    lab.serve("c1")
    need("ip")
    run_in(lab.outside, lambda: subprocess.run(["ip", "route", "add", "10.88.0.0/16", "via", HOST[4]], check=True))
    assert lab.ask(lab.outside, 80) == "c1 10.88.0.1"
    address = lab.results["c1"].ips[0].address.ip
    assert lab.ask(lab.outside, 80, str(address)) == "c1 192.0.2.2"


@pytest.mark.whole
def test_without_snat_the_host_does_not_cross_from_localhost(lab: Lab) -> None:
    lab.add("c1", mapping(8080), snat=False)
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    assert lab.ask(None, 8080, "127.0.0.1") == ""


def test_each_port_of_many_leads_where_it_says(lab: Lab) -> None:
    lab.add("c1", mapping(8081, 81), mapping(8082, 82), mapping(8081, 83, "udp"))
    for port, kind in ((81, STREAM), (82, STREAM), (83, DATAGRAM)):
        lab.serve("c1", port, kind, name=str(port).encode())
    assert lab.ask(lab.outside, 8081) == "81 192.0.2.2"
    assert lab.ask(lab.outside, 8082) == "82 192.0.2.2"
    assert lab.ask(lab.outside, 8081, kind=DATAGRAM) == "83 192.0.2.2"


@pytest.mark.parametrize(
    ("conditions", "answer"),
    [
        (["-s", "192.0.2.2"], "c1 192.0.2.2"),
        (["!", "-s", "192.0.2.0/24"], ""),
        (["-i", "up0"], "c1 192.0.2.2"),
        (["-i", "br+"], ""),
        (["ip", "saddr", "192.0.2.0/24"], "c1 192.0.2.2"),
        (["ip saddr != 192.0.2.2"], ""),
        (["iifname", "up0", "ip", "daddr", "!=", "203.0.113.1"], "c1 192.0.2.2"),
        (["iifname", "!=", "up*"], ""),
    ],
)
def test_conditions_say_whose_connections_are_forwarded(lab: Lab, conditions: list[str], answer: str) -> None:
    lab.add("c1", mapping(8080), conditionsV4=conditions)
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == answer
    assert lab.ask(lab.outside, 8080, HOST[6]) == "c1 2001:db8::2"


def test_after_del_nobody_is_forwarded(lab: Lab) -> None:
    lab.add("c1", mapping(8080), conditionsV6=["ip6", "saddr", "2001:db8::/64"])
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080, HOST[6]) == "c1 2001:db8::2"
    lab.delete("c1", mapping(8080))
    assert lab.ask(lab.outside, 8080) == lab.ask(lab.outside, 8080, HOST[6]) == ""
    assert lab.ports() == set()
