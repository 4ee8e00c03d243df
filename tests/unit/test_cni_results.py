"""CNI results in every version."""

import json
from ipaddress import ip_address, ip_interface, ip_network
from typing import Any

import pytest

from nodeplug import (
    CniDns,
    CniInterface,
    CniIp,
    CniResult,
    CniRoute,
    IncompatibleVersion,
    PluginError,
    Undecodable,
)
from nodeplug.cni import results

RESULT = CniResult(
    interfaces=(
        CniInterface("cni0", mac="aa:aa:aa:aa:aa:aa", mtu=1500),
        CniInterface(
            "eth0", mac="bb:bb:bb:bb:bb:bb", sandbox="/ns", mtu=1400, socket_path="/sock", pci_id="0000:00:1f.6"
        ),
    ),
    ips=(
        CniIp(ip_interface("10.1.0.5/16"), gateway=ip_address("10.1.0.1"), interface=1),
        CniIp(ip_interface("10.2.0.5/16"), gateway=None, interface=1),
        CniIp(ip_interface("fd00::5/64"), gateway=ip_address("fd00::1"), interface=1),
    ),
    routes=(
        CniRoute(
            ip_network("0.0.0.0/0"), gw=ip_address("10.1.0.1"), mtu=1400, advmss=1360, priority=5, table=7, scope=0
        ),
        CniRoute(ip_network("::/0")),
    ),
    dns=CniDns(nameservers=("10.1.0.53",), domain="example.com", search=("a.example.com",), options=("ndots:2",)),
)
DNS = {"nameservers": ["10.1.0.53"], "domain": "example.com", "search": ["a.example.com"], "options": ["ndots:2"]}
ROUTES = [
    {"dst": "0.0.0.0/0", "gw": "10.1.0.1", "mtu": 1400, "advmss": 1360, "priority": 5, "table": 7, "scope": 0},
    {"dst": "::/0"},
]
OLD_ROUTES = [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}, {"dst": "::/0"}]
OLDEST = {
    "ip4": {"ip": "10.1.0.5/16", "gateway": "10.1.0.1", "routes": OLD_ROUTES[:1]},
    "ip6": {"ip": "fd00::5/64", "gateway": "fd00::1", "routes": OLD_ROUTES[1:]},
    "dns": DNS,
}
MIDDLE = {
    "interfaces": [
        {"name": "cni0", "mac": "aa:aa:aa:aa:aa:aa"},
        {"name": "eth0", "mac": "bb:bb:bb:bb:bb:bb", "sandbox": "/ns"},
    ],
    "ips": [
        {"version": "4", "address": "10.1.0.5/16", "gateway": "10.1.0.1", "interface": 1},
        {"version": "4", "address": "10.2.0.5/16", "interface": 1},
        {"version": "6", "address": "fd00::5/64", "gateway": "fd00::1", "interface": 1},
    ],
    "routes": ROUTES,
    "dns": DNS,
}
MODERN = {
    "interfaces": [
        {"name": "cni0", "mac": "aa:aa:aa:aa:aa:aa", "mtu": 1500},
        {
            "name": "eth0",
            "mac": "bb:bb:bb:bb:bb:bb",
            "sandbox": "/ns",
            "mtu": 1400,
            "socketPath": "/sock",
            "pciID": "0000:00:1f.6",
        },
    ],
    "ips": [{key: value for key, value in ip.items() if key != "version"} for ip in MIDDLE["ips"]],  # type: ignore[attr-defined] # a literal
    "routes": ROUTES,
    "dns": DNS,
}
FORMS = {
    "0.1.0": OLDEST,
    "0.2.0": OLDEST,
    "0.3.0": MIDDLE,
    "0.3.1": MIDDLE,
    "0.4.0": MIDDLE,
    "1.0.0": MODERN,
    "1.1.0": MODERN,
}


@pytest.mark.parametrize(("version", "form"), FORMS.items())
def test_a_result_is_written_in_the_form_of_each_version(version: str, form: dict[str, Any]) -> None:
    assert results.encode(RESULT, version) == {"cniVersion": version, **form}


@pytest.mark.parametrize("version", results.VERSIONS)
def test_what_a_version_says_is_read_back(version: str) -> None:
    written = results.encode(RESULT, version)
    assert results.encode(results.decode(written, version), version) == written


def test_the_newest_version_loses_nothing() -> None:
    assert results.decode(results.encode(RESULT, "1.1.0"), "1.1.0") == RESULT


@pytest.mark.parametrize("version", results.VERSIONS[2:])
def test_an_empty_result_is_small(version: str) -> None:
    older: dict[str, Any] = {"dns": {}} if version < "1" else {}
    assert results.encode(CniResult(), version) == {"cniVersion": version, **older}


@pytest.mark.parametrize("version", ["0.1.0", "0.2.0"])
def test_the_oldest_versions_cannot_say_a_result_without_address(version: str) -> None:
    with pytest.raises(PluginError, match="cannot convert: no valid IP addresses"):
        results.encode(CniResult(interfaces=(CniInterface("lo"),)), version)


def test_a_route_without_address_of_its_family_is_left_out_of_the_oldest_versions() -> None:
    result = CniResult(ips=(CniIp(ip_interface("10.0.0.1/8")),), routes=(CniRoute(ip_network("::/0")),))
    assert results.encode(result, "0.2.0")["ip4"] == {"ip": "10.0.0.1/8"}


def test_an_unknown_version_is_refused_both_ways() -> None:
    for use in (lambda: results.encode(RESULT, "2.0.0"), lambda: results.decode({}, "2.0.0")):
        with pytest.raises(IncompatibleVersion, match=r"2\.0\.0"):
            use()


@pytest.mark.parametrize("family", results.FAMILIES)
def test_within_a_family_every_version_is_read(family: tuple[str, ...]) -> None:
    for own in family:
        for version in family:
            written = results.encode(RESULT, own)
            assert results.decode(written, version) == results.decode(written, own)


@pytest.mark.parametrize(
    ("own", "version"), [("1.0.0", "0.4.0"), ("0.4.0", "1.1.0"), ("0.2.0", "0.3.0"), ("9", "1.0.0")]
)
def test_a_result_of_another_family_is_refused(own: str, version: str) -> None:
    with pytest.raises(IncompatibleVersion, match="result type supports"):
        results.decode({"cniVersion": own}, version)


@pytest.mark.parametrize("own", [{}, {"cniVersion": ""}, {"cniVersion": None}])
def test_a_result_without_version_has_that_of_its_configuration(own: dict[str, Any]) -> None:
    assert results.decode({**own, "ips": [{"address": "10.0.0.1/8"}]}, "1.0.0").ips


def test_keys_match_without_regard_to_case() -> None:
    document = {"CNIVersion": "1.0.0", "IPs": [{"Address": "10.0.0.1/8"}], "Interfaces": [{"Name": "x", "PCIID": "p"}]}
    result = results.decode(document, "1.0.0")
    assert (result.ips[0].address, result.interfaces[0].pci_id) == (ip_interface("10.0.0.1/8"), "p")


def test_null_and_empty_stand_for_nothing() -> None:
    document = {"interfaces": None, "ips": [{"address": "10.0.0.1/8", "gateway": "", "interface": None}], "dns": None}
    result = results.decode(document, "1.0.0")
    assert result == CniResult(ips=(CniIp(ip_interface("10.0.0.1/8")),))


def test_host_bits_of_a_route_are_no_error() -> None:
    result = results.decode({"routes": [{"dst": "10.0.0.5/8"}]}, "1.0.0")
    assert result.routes[0].dst == ip_network("10.0.0.0/8")


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ([], "a CNI result is an object, found a list"),
        (None, "found null"),
        ({"ips": {}}, "'ips' of result must be a list"),
        ({"ips": [1]}, r"'ips\[0\]' of result must be an object"),
        ({"ips": [{"address": "10.0.0.1"}]}, "prefix length, found '10.0.0.1'"),
        ({"ips": [{"address": "10.0.0.1/255.0.0.0"}]}, "prefix length"),
        ({"ips": [{"address": "10.0.0.1/33"}]}, "prefix length"),
        ({"ips": [{}]}, "prefix length, found ''"),
        ({"ips": [{"address": "10.0.0.1/8", "gateway": "x"}]}, "must be an address, found 'x'"),
        ({"ips": [{"address": "10.0.0.1/8", "interface": "0"}]}, "must be a whole number, found a string"),
        ({"ips": [{"address": "10.0.0.1/8", "interface": True}]}, "must be a whole number, found a boolean"),
        ({"routes": [{"dst": "10.0.0.0/8", "mtu": 1.5}]}, "must be a whole number, found a number"),
        ({"interfaces": [{"name": 5}]}, "must be a string, found a number"),
        ({"dns": {"search": "x"}}, "must be a list of strings"),
        ({"dns": []}, "'dns' of result must be an object"),
        ({"cniVersion": 1}, "'cniversion' of result must be a string"),
    ],
)
def test_a_wrong_type_is_named(document: Any, words: str) -> None:
    with pytest.raises(Undecodable, match=words):
        results.decode(document, "1.0.0")


def test_what_is_written_is_json() -> None:
    assert json.loads(json.dumps(results.encode(RESULT, "1.1.0"))) == results.encode(RESULT, "1.1.0")


@pytest.mark.parametrize(("version", "kept"), [("0.2.0", False), ("0.3.1", True), ("1.1.0", True)])
def test_the_oldest_form_has_no_numbers_of_routes(version: str, kept: bool) -> None:
    route = CniRoute(ip_network("10.0.0.0/8"), gw=ip_address("10.2.0.1"), advmss=1400, priority=7)
    document = results.encode(CniResult(ips=(CniIp(ip_interface("10.2.0.5/16")),), routes=(route,)), version)
    (written,) = document.get("routes") or document["ip4"]["routes"]
    assert written == {"dst": "10.0.0.0/8", "gw": "10.2.0.1", **({"advmss": 1400, "priority": 7} if kept else {})}
