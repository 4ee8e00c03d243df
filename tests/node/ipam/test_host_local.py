"""Addresses of host-local: who gets which, and what is refused."""

import threading
from dataclasses import replace
from ipaddress import ip_interface
from pathlib import Path

import pytest
from tests.node.ipam.addresses import add, network

from nodeplug import (
    CniIp,
    CniResult,
    Exhausted,
    InvalidRequest,
    NotReady,
    PluginError,
)
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.host_local import HostLocal, HostLocalConfig


def test_a_result_has_addresses_gateways_and_routes_alone(scratch: ScratchCni, host_local: HostLocal) -> None:
    result = scratch.add(host_local, network(routes=[{"dst": "0.0.0.0/0"}]), "c1", scratch.host_netns)
    assert result.interfaces == ()
    assert [(str(ip.address), str(ip.gateway), ip.interface) for ip in result.ips] == [
        ("10.1.2.2/24", "10.1.2.1", None)
    ]
    assert [str(route.dst) for route in result.routes] == ["0.0.0.0/0"]


def test_what_is_excluded_is_given_to_nobody(scratch: ScratchCni, host_local: HostLocal) -> None:
    config = network("10.1.2.0/29", exclude=["10.1.2.3", "10.1.2.4/31"])
    assert [add(scratch, host_local, config, who) for who in ("c1", "c2")] == [["10.1.2.2/29"], ["10.1.2.6/29"]]
    with pytest.raises(Exhausted, match=r"range set: 10\.1\.2\.1-10\.1\.2\.2,10\.1\.2\.6-10\.1\.2\.6; "):
        add(scratch, host_local, config, "c3")
    with pytest.raises(NotReady, match="0 of 2 addresses free"):
        scratch.status(host_local, config)


def test_who_has_an_address_that_was_excluded_since_keeps_it(scratch: ScratchCni, host_local: HostLocal) -> None:
    add(scratch, host_local, network("10.1.2.0/29"), "c1")
    excluded = network("10.1.2.0/29", exclude=["10.1.2.2"])
    result = scratch.add(host_local, excluded, "c1", scratch.host_netns)
    assert [str(ip.address) for ip in result.ips] == ["10.1.2.2/29"]
    scratch.check(host_local, excluded, "c1", scratch.host_netns, result)
    scratch.delete(host_local, excluded, "c1", scratch.host_netns)
    assert add(scratch, host_local, excluded, "c2") == ["10.1.2.3/29"]


def test_nobody_gets_an_excluded_address_on_request(scratch: ScratchCni, host_local: HostLocal) -> None:
    config = network("10.1.2.0/29", exclude=["10.1.2.4"])
    with pytest.raises(InvalidRequest, match=r"failed to allocate all requested IPs: 10\.1\.2\.4"):
        add(scratch, host_local, config, "c1", args={"IP": "10.1.2.4"})


def test_the_folder_looks_as_the_reference_leaves_it(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    add(scratch, host_local, network("10.1.2.0/24", "fd00::/64"), "c1")
    assert {path.name for path in folder.iterdir()} == {
        "lock",
        "10.1.2.2",
        "fd00::2",
        "last_reserved_ip.0",
        "last_reserved_ip.1",
    }
    assert (folder / "10.1.2.2").read_bytes() == b"c1\r\neth0"
    assert (folder / "10.1.2.2").stat().st_mode & 0o777 == 0o600
    assert (folder / "last_reserved_ip.0").read_text() == "10.1.2.2"
    assert folder.stat().st_mode & 0o777 == 0o755


def test_addresses_go_round(scratch: ScratchCni, host_local: HostLocal) -> None:
    for index in range(3):
        add(scratch, host_local, network(), f"c{index}")
    scratch.delete(host_local, network(), "c1")
    assert add(scratch, host_local, network(), "c3") == ["10.1.2.5/24"]


def test_a_repeated_add_answers_the_same_addresses(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    config = network("10.1.2.0/24", "fd00::/64")
    first = add(scratch, host_local, config, "c1")
    before = {path.name for path in folder.iterdir()}
    assert add(scratch, host_local, config, "c1") == first
    assert add(scratch, HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host), config, "c1") == first
    assert {path.name for path in folder.iterdir()} == before


def test_another_interface_gets_another_address(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    assert add(scratch, host_local, network(), "c1") != add(scratch, host_local, network(), "c1", ifname="eth1")
    scratch.delete(host_local, network(), "c1", ifname="eth1")
    assert (folder / "10.1.2.2").exists()
    assert not (folder / "10.1.2.3").exists()


def test_del_of_a_stranger_succeeds_and_makes_no_folder(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    scratch.delete(host_local, network(), "stranger")
    assert not folder.exists()
    add(scratch, host_local, network(), "c1")
    scratch.delete(host_local, network(), "stranger")
    assert (folder / "10.1.2.2").exists()


def test_the_search_goes_on_behind_a_requested_address(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    add(scratch, host_local, network(), "c1", args={"IP": "10.1.2.50"})
    assert (folder / "last_reserved_ip.0").read_text() == "10.1.2.50"
    assert add(scratch, host_local, network(), "c2") == ["10.1.2.51/24"]


def test_parallel_adds_never_share_an_address(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    other = HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host)
    found: list[str] = []

    def run(plugin: HostLocal, prefix: str) -> None:
        for index in range(25):
            found.extend(add(scratch, plugin, network(), f"{prefix}{index}"))

    threads = [threading.Thread(target=run, args=pair) for pair in ((host_local, "a"), (host_local, "b"), (other, "c"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 75


def test_a_requested_address_is_given(scratch: ScratchCni, host_local: HostLocal) -> None:
    config = {**network("10.1.2.0/24", "fd00::/64"), "runtimeConfig": {"ips": ["fd00::77/64", "10.1.2.88"]}}
    assert add(scratch, host_local, config, "c1") == ["10.1.2.88/24", "fd00::77/64"]
    assert add(scratch, host_local, config, "c1") == ["10.1.2.88/24", "fd00::77/64"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("10.1.2.1", "requested ip 10.1.2.1 is subnet's gateway"),
        ("10.9.9.9", "failed to allocate all requested IPs: 10.9.9.9"),
        ("10.1.2.255", "failed to allocate all requested IPs: 10.1.2.255"),
    ],
)
def test_an_address_that_cannot_be_given_is_refused_and_nothing_is_held(
    scratch: ScratchCni, host_local: HostLocal, folder: Path, address: str, message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        add(scratch, host_local, network(), "c1", args={"IP": address})
    assert [path for path in folder.iterdir() if path.name.startswith("10.")] == []


def test_a_requested_address_in_use_names_its_holder(scratch: ScratchCni, host_local: HostLocal) -> None:
    add(scratch, host_local, network(), "c1", args={"IP": "10.1.2.50"})
    with pytest.raises(Exhausted, match=r"10\.1\.2\.50 is not available .*; it has been allocated to c1"):
        add(scratch, host_local, network(), "c2", args={"IP": "10.1.2.50"})


def test_a_full_range_is_an_error_with_numbers(scratch: ScratchCni, host_local: HostLocal) -> None:
    config = network("10.1.2.0/29")
    for index in range(5):
        add(scratch, host_local, config, f"c{index}")
    with pytest.raises(Exhausted, match=r"no IP addresses available in range set: 10\.1\.2\.1-10\.1\.2\.6; 5 of 5 in"):
        add(scratch, host_local, config, "c9")
    with pytest.raises(NotReady, match="0 of 5 addresses free"):
        scratch.status(host_local, config)
    scratch.delete(host_local, config, "c3")
    scratch.status(host_local, config)
    assert add(scratch, host_local, config, "c9") == ["10.1.2.5/29"]


def test_a_crowded_large_network_still_allocates(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    folder.mkdir(parents=True)
    for index in range(2, 3000):
        (folder / f"10.5.{index // 256}.{index % 256}").write_text(f"x{index}\r\neth0")
    assert add(scratch, host_local, network("10.5.0.0/16"), "c1") == ["10.5.11.184/16"]
    assert add(scratch, host_local, network("fd00::/48"), "c2") == ["fd00::2/48"]


def test_check_wants_the_addresses_of_the_result(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    result = scratch.add(host_local, network(), "c1", scratch.host_netns)
    scratch.check(host_local, network(), "c1", scratch.host_netns, result)
    with pytest.raises(PluginError, match="Failed to find address added by container c2"):
        scratch.check(host_local, network(), "c2", scratch.host_netns, result)
    other = replace(result, ips=(CniIp(ip_interface("10.1.2.99/24")),))
    with pytest.raises(PluginError, match=r"10\.1\.2\.99 is not reserved"):
        scratch.check(host_local, network(), "c1", scratch.host_netns, other)
    (folder / "10.1.2.2").unlink()
    with pytest.raises(PluginError, match="Failed to find address"):
        scratch.check(host_local, network(), "c1", scratch.host_netns, CniResult())


def test_gc_frees_what_is_not_valid(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    for name in ("c1", "c2", "c3"):
        add(scratch, host_local, network(), name)
    (folder / "10.1.2.99").write_text("c2")
    (folder / "10.1.2.98").write_text("gone")
    scratch.gc(host_local, network(), None)
    assert len([path for path in folder.iterdir() if path.name.startswith("10.")]) == 5
    scratch.gc(host_local, network(), [("c2", "eth0")])
    assert {path.name for path in folder.iterdir() if path.name.startswith("10.")} == {"10.1.2.3", "10.1.2.99"}
    scratch.gc(host_local, network(), [])
    assert [path for path in folder.iterdir() if path.name.startswith("10.")] == []
