import ipaddress
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniAdd, CniDns, IncompatibleVersion, InvalidEnvironment, InvalidRequest, Netns
from nodeplug_net.ipam.config import IpamConfig, folder_of, parse_config, parse_resolv_conf
from nodeplug_net.ipam.ranges import RangeConf, parse_range_set

DATA = Path("/var/lib/cni/networks")


@pytest.fixture
def here() -> Iterator[Netns]:
    netns = Netns.current()
    yield netns
    netns.close()


def request(here: Netns, ipam: Mapping[str, Any] | None, **more: Any) -> CniAdd:
    version, args = more.pop("version", "1.0.0"), more.pop("cni_args", {})
    return CniAdd(
        claim="x",
        network="net",
        version=version,
        config={"name": "net", "ipam": ipam, **more},
        host_netns=here,
        netns=here,
        container_id="c",
        ifname="eth0",
        args=args,
    )


def sets(config: IpamConfig) -> list[str]:
    return [str(one) for one in config.ranges]


def test_the_old_style_subnet_comes_before_the_new_style_ranges(here: Netns) -> None:
    ipam = {"subnet": "10.0.0.0/24", "rangeStart": "10.0.0.9", "ranges": [[{"subnet": "10.1.0.0/24"}]]}
    assert sets(parse_config(request(here, ipam), DATA)) == ["10.0.0.9-10.0.0.254", "10.1.0.1-10.1.0.254"]


def test_ranges_of_the_runtime_come_first(here: Netns) -> None:
    runtime = {"ipRanges": [[{"subnet": "10.9.0.0/24"}]]}
    config = parse_config(request(here, {"ranges": [[{"subnet": "10.1.0.0/24"}]]}, runtimeConfig=runtime), DATA)
    assert sets(config) == ["10.9.0.1-10.9.0.254", "10.1.0.1-10.1.0.254"]


def test_keys_match_without_regard_to_case(here: Netns) -> None:
    ipam = {"Ranges": [[{"Subnet": "10.1.0.0/24", "RANGESTART": "10.1.0.7"}]], "DataDir": "/data"}
    config = parse_config(request(here, ipam), DATA)
    assert sets(config) == ["10.1.0.7-10.1.0.254"]
    assert config.folder == Path("/data/net")


def test_addresses_are_asked_for_in_three_places_with_and_without_prefix(here: Netns) -> None:
    config = parse_config(
        request(
            here,
            {"subnet": "10.0.0.0/24"},
            cni_args={"IP": "10.0.0.5/24"},
            args={"cni": {"ips": ["10.0.0.6", "10.0.0.5"]}},
            runtimeConfig={"ips": ["fd00::7/64"]},
        ),
        DATA,
    )
    assert [str(one) for one in config.requested] == ["10.0.0.5", "10.0.0.6", "fd00::7"]


def test_a_bad_address_in_cni_args_is_an_error_of_the_environment(here: Netns) -> None:
    with pytest.raises(InvalidEnvironment, match='pair "IP=bad": invalid IP address bad'):
        parse_config(request(here, {"subnet": "10.0.0.0/24"}, cni_args={"IP": "bad"}), DATA)


def test_a_bad_address_of_the_runtime_is_refused(here: Netns) -> None:
    with pytest.raises(InvalidRequest, match="invalid IP address bad; in key 'ips'"):
        parse_config(request(here, {"subnet": "10.0.0.0/24"}, runtimeConfig={"ips": ["bad"]}), DATA)


def test_routes_carry_the_numbers_of_specification_1_1(here: Netns) -> None:
    ipam = {
        "subnet": "10.0.0.0/24",
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "10.2.0.0/16", "gw": "10.0.0.9", "mtu": 1400}],
    }
    first, second = parse_config(request(here, ipam), DATA).routes
    assert (str(first.dst), first.gw, first.mtu) == ("0.0.0.0/0", None, None)
    assert (str(second.dst), str(second.gw), second.mtu) == ("10.2.0.0/16", "10.0.0.9", 1400)


@pytest.mark.parametrize(
    ("route", "message"),
    [
        ({"gw": "10.0.0.1"}, "key 'ipam.routes[0].dst': field required"),
        ({"dst": "nowhere"}, "invalid CIDR address: nowhere"),
        ({"dst": "10.0.0.0/8", "gw": "10"}, "invalid IP address: 10"),
        ("10.0.0.0/8", "key 'ipam.routes[0]'"),
        ({"dst": "10.0.0.0/8", "mtu": "x"}, "key 'ipam.routes[0].mtu'"),
    ],
)
def test_a_wrong_route_is_refused(here: Netns, route: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_config(request(here, {"subnet": "10.0.0.0/24", "routes": [route]}), DATA)
    assert refusal.value.message.startswith(message)


@pytest.mark.parametrize(
    ("ipam", "key"),
    [
        ({"subnet": 5}, "ipam.subnet"),
        ({"ranges": [{"subnet": "10.0.0.0/24"}]}, "ipam.ranges[0]"),
        ({"ranges": [["10.0.0.0/24"]]}, "ipam.ranges[0][0]"),
        ("host-local", "ipam"),
    ],
)
def test_a_key_of_the_wrong_shape_is_refused_by_its_place(here: Netns, ipam: Any, key: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        parse_config(request(here, ipam), DATA)
    assert refusal.value.message.startswith(f"key {key!r}: input should be")


def test_a_mistake_in_another_key_does_not_keep_addresses_reserved(here: Netns) -> None:
    assert folder_of(request(here, {"subnet": 5, "dataDir": "/data"}), DATA) == Path("/data/net")


def test_a_missing_ipam_key_is_refused(here: Netns) -> None:
    with pytest.raises(InvalidRequest, match="IPAM config missing 'ipam' key"):
        parse_config(request(here, None), DATA)
    with pytest.raises(InvalidRequest, match="no IP ranges specified"):
        parse_config(request(here, {}), DATA)


def test_no_ranges_are_refused(here: Netns) -> None:
    with pytest.raises(InvalidRequest, match="no IP ranges specified"):
        parse_config(request(here, {"type": "host-local"}), DATA)


def test_an_old_version_carries_one_address_of_each_family(here: Netns) -> None:
    v4, v6 = [{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]
    assert len(parse_config(request(here, {"ranges": [v4, v6]}, version="0.2.0"), DATA).ranges) == 2
    two = [v4, [{"subnet": "10.1.0.0/24"}]]
    with pytest.raises(IncompatibleVersion, match="more than 1 address per family"):
        parse_config(request(here, {"ranges": two}, version="0.2.0"), DATA)


@pytest.mark.parametrize("folder", [5, "relative/path"])
def test_a_wrong_folder_is_refused(here: Netns, folder: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"ipam\.dataDir"):
        folder_of(request(here, {"dataDir": folder}), DATA)


def test_resolv_conf_is_read_like_the_resolver_reads_it() -> None:
    servers = "nameserver 192.0.2.1\nnameserver 192.0.2.2\n"
    text = f"# a comment\n; another\n{servers}domain a\ndomain b\nsearch c d\noptions x:1\n"
    assert parse_resolv_conf(text) == CniDns(
        nameservers=("192.0.2.1", "192.0.2.2"), domain="b", search=("c", "d"), options=("x:1",)
    )


def test_a_missing_resolv_conf_is_refused(here: Netns, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"ipam\.resolvConf"):
        parse_config(request(here, {"subnet": "10.0.0.0/24", "resolvConf": str(tmp_path / "none")}), DATA)


@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "large"])
def test_a_resolv_conf_that_never_ends_or_is_too_large_is_refused_at_once(
    here: Netns, tmp_path: Path, kind: str
) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / kind
    match kind:
        case "pipe":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "large":
            path.touch()
            os.truncate(path, 1 << 40)
    with pytest.raises(InvalidRequest, match=rf"^read {path}: (it is not a regular file|is a directory|it has)"):
        parse_config(request(here, {"subnet": "10.0.0.0/24", "resolvConf": str(path)}), DATA)


def test_the_addresses_of_a_result_are_a_family_each(here: Netns) -> None:
    config = parse_config(request(here, {"ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]]}), DATA)
    assert [one.version for one in config.ranges] == [4, 6]
    assert ipaddress.ip_address("fd00::9") in config.ranges[1]


def test_what_is_excluded_is_left_out_of_every_range_set(here: Netns) -> None:
    ipam = {
        "ranges": [[{"subnet": "10.0.0.0/24"}], [{"subnet": "fd00::/64"}]],
        "Exclude": ["10.0.0.0/28", "10.0.0.99", "fd00::/80"],
    }
    config = parse_config(request(here, ipam), DATA)
    assert sets(config) == ["10.0.0.1-10.0.0.254", "fd00::1-fd00::ffff:ffff:ffff:ffff"]
    assert list(map(str, config.allocatable)) == [
        "10.0.0.16-10.0.0.98,10.0.0.100-10.0.0.254",
        "fd00::1:0:0:0-fd00::ffff:ffff:ffff:ffff",
    ]


@pytest.mark.parametrize(
    ("exclude", "message"),
    [
        (["10.0.0.5/24"], "exclude 10.0.0.5/24 is an address of network 10.0.0.0/24, not a network"),
        (["x"], "invalid IP address: x"),
        (["10.0.0.0/33"], "invalid CIDR address: 10.0.0.0/33"),
        (["10.0.0.0/8"], "range set 0: exclude leaves no address of 10.0.0.1-10.0.0.254"),
        (["10.0.0.0/25", "10.0.0.128/25"], "range set 0: exclude leaves no address of 10.0.0.1-10.0.0.254"),
    ],
)
def test_an_exclusion_that_is_none_or_leaves_nothing_is_refused(here: Netns, exclude: list[str], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_config(request(here, {"subnet": "10.0.0.0/24", "exclude": exclude}), DATA)
    assert caught.value.message == message


def test_ranges_that_share_an_address_are_found_wherever_they_stand() -> None:
    subnets = [f"10.0.{number}.0/24" for number in (7, 3, 9, 1, 5)]
    for place in range(len(subnets) + 1):
        confs = [RangeConf.model_validate({"subnet": one}) for one in subnets]
        assert len(parse_range_set(confs).ranges) == len(subnets)
        confs.insert(place, RangeConf.model_validate({"subnet": "10.0.4.0/23"}))
        with pytest.raises(InvalidRequest, match=r"subnets 10\.0\.\S+ and 10\.0\.\S+ overlap"):
            parse_range_set(confs)
