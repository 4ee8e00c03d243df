from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug import CniAdd, CniStatus, InvalidRequest, Netns
from nodeplug_net.tuning.config import TuningConfig, folder_of, parse_mac, parse_tuning, sysctl_file
from nodeplug_net.tuning.settings import Settings


@pytest.fixture
def here() -> Iterator[Netns]:
    netns = Netns.current()
    yield netns
    netns.close()


def add(here: Netns, args_text: str = "", **config: Any) -> CniAdd:
    return CniAdd(
        claim="x",
        network="net",
        version="1.0.0",
        config=config,
        host_netns=here,
        netns=here,
        container_id="c",
        ifname="eth0",
        args_text=args_text,
    )


def test_without_keys_nothing_is_asked_for(here: Netns) -> None:
    config = parse_tuning(add(here, sysctl=None, promisc=False, mtu=0, mac="", allmulti=None, args={"cni": None}))
    assert config == TuningConfig({}, Settings())
    assert not config.settings


def test_no_frame_in_the_queue_and_no_multicast_frames_can_be_asked_for(here: Netns) -> None:
    config = parse_tuning(add(here, txQLen=0, allmulti=False))
    assert config.settings == Settings(allmulti=False, queue=0)
    assert config.settings


def test_a_status_has_no_arguments(here: Netns) -> None:
    request = CniStatus(claim="x", network="net", version="1.1.0", config={"mtu": 1300}, host_netns=here)
    assert parse_tuning(request).settings == Settings(mtu=1300)


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("net.core.somaxconn", "core/somaxconn"),
        ("net/ipv4/ip_forward", "ipv4/ip_forward"),
        ("net.ipv4.conf.IFNAME.arp_filter", "ipv4/conf/eth0.5/arp_filter"),
        ("net.IFNAME.IFNAME", "eth0.5/IFNAME"),
        ("net..ipv4./ip_forward.", "ipv4/ip_forward"),
    ],
)
def test_a_name_is_a_file_below_that_of_the_network(name: str, path: str) -> None:
    assert sysctl_file(name, "eth0.5") == f"/proc/sys/net/{path}"


@pytest.mark.parametrize("name", ["", "net", "net.", "kernel.hostname", "../etc", "netx.a", "net.a\n", "net.\ud800"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=r"\Ainvalid net sysctl key: "):
        sysctl_file(name, "eth0")


@pytest.mark.parametrize(
    ("text", "mac"),
    [
        ("02:00:00:00:00:0A", "02:00:00:00:00:0a"),
        ("02-00-00-00-00-0a", "02:00:00:00:00:0a"),
        ("0200.0000.000a", "02:00:00:00:00:0a"),
        ("02:00:00:00:00:00:00:0a", "02:00:00:00:00:00:00:0a"),
        (":".join(["00"] * 20), ":".join(["00"] * 20)),
    ],
)
def test_a_hardware_address_is_read_as_go_reads_it(text: str, mac: str) -> None:
    assert parse_mac(text) == mac


@pytest.mark.parametrize(
    "text", ["x", "020000000001", "02:00:00:00:00", "02:00-00:00:00:01", "02:00:00:00:00:0g", "2:0:0:0:0:1", " 1:_1:"]
)
def test_what_is_no_hardware_address_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"invalid args {text} for MAC addr: address {text}: invalid MAC address"):
        parse_mac(text)


def test_backups_are_where_the_network_says(here: Netns) -> None:
    assert folder_of(add(here), Path("/a")) == Path("/a")
    assert folder_of(add(here, DATADIR="/b"), Path("/a")) == Path("/b")


@pytest.mark.parametrize("said", ["b", "/b\0"])
def test_a_folder_that_is_none_is_refused(here: Netns, said: str) -> None:
    with pytest.raises(InvalidRequest, match="key 'dataDir': an absolute path is wanted"):
        folder_of(add(here, dataDir=said), Path("/a"))


@pytest.mark.parametrize(
    "keys", [{"mtu": -1}, {"mtu": 1 << 32}, {"mtu": True}, {"txQLen": -1}, {"promisc": 1}], ids=str
)
def test_a_value_that_cannot_be_is_refused_with_its_key(here: Netns, keys: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=f"failed to load netconf: key '{next(iter(keys))}': "):
        parse_tuning(add(here, **keys))
