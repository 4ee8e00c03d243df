"""ADD that fails, at every step, by real means; and what must not be there afterwards."""

import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from ipaddress import ip_address, ip_interface
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    CniAdd,
    CniCheck,
    CniDel,
    CniGc,
    CniIp,
    CniRequest,
    CniResult,
    CniRoute,
    CniStatus,
    DelegateFailed,
    Exhausted,
    InvalidRequest,
    Journal,
    Netns,
    PluginError,
    TryAgain,
)
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net import messages
from nodeplug_net import nftmessages as nft
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge import Bridge, BridgeConfig
from nodeplug_net.links import Links
from nodeplug_net.masquerade import Masquerade
from nodeplug_net.netlink import Netlink, Request

Make = Callable[..., dict[str, Any]]
Look = Callable[[Netns], Any]


class ForeignIpam:
    """Stands for an IPAM plugin on CNI_PATH: notes each verb, and refuses a second ADD as host-local does."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.holder: set[str] = set()
        self.failure: PluginError | None = None
        self.result = CniResult(
            ips=(CniIp(ip_interface("10.77.0.9/24"), ip_address("10.77.0.1")),),
            routes=(CniRoute(ip_interface("10.1.0.0/16").network, None, mtu=1300),),
        )

    def __call__(self, request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        verb = type(request).__name__.removeprefix("Cni").upper()
        self.calls.append(f"{plugin_type} {verb}")
        assert config == request.config
        if self.failure is not None and not isinstance(request, CniDel):
            raise self.failure
        if isinstance(request, CniDel):
            self.holder.discard(request.container_id)
        if isinstance(request, CniAdd):
            if request.container_id in self.holder:
                raise DelegateFailed("duplicate allocation is not allowed", code=999)
            self.holder.add(request.container_id)
            return self.result
        assert isinstance(request, CniDel | CniCheck | CniGc | CniStatus)
        return None


@pytest.fixture
def ipam() -> ForeignIpam:
    return ForeignIpam()


@pytest.fixture
def scratch(tmp_path: Path, ipam: ForeignIpam) -> Iterator[ScratchCni]:
    with ScratchCni(tmp_path, delegate=ipam) as made:
        yield made


@pytest.fixture
def clean(scratch: ScratchCni, look: Look) -> Callable[[Netns, set[str]], None]:
    """Check that neither namespace, nor the address folder, nor the table has anything of container c1."""

    def check(netns: Netns, inside: set[str]) -> None:
        def masqueraded() -> list[Any]:
            with Netlink(12) as netlink:
                return Masquerade(netlink).entries("nodeplug net c1 ")

        assert look(netns).links == inside
        assert Attachment("net", "c1", "eth0").host_veth not in look(scratch.host_netns).links
        folder = scratch.folder / "networks" / "net"
        held = [path.name for path in folder.glob("*") if path.name[0].isdigit() or ":" in path.name]
        assert [name for name in held if (folder / name).read_text().startswith("c1")] == []
        assert scratch.on_host(masqueraded) == []

    return check


Clean = Callable[[Netns, set[str]], None]


def test_a_bad_mtu_leaves_nothing(scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c0", scratch.container())
    with pytest.raises(PluginError, match="MTU 100000"):
        scratch.add(bridge, config(mtu=100000), "c1", netns)
    clean(netns, {"lo"})


def test_a_taken_interface_name_leaves_the_other_interface_alone(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(name="other"), "c1", netns)
    with pytest.raises(InvalidRequest, match="'eth0' already exists"):
        scratch.add(bridge, config(), "c1", netns)
    clean(netns, {"lo", "eth0"})
    scratch.delete(bridge, config(), "c1", netns)  # as a runtime does after a failed ADD
    clean(netns, {"lo", "eth0"})


def test_an_exhausted_range_leaves_nothing_and_names_the_numbers(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    scratch.add(bridge, config("10.88.0.0/30"), "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(Exhausted, match=r"no IP addresses available in range set: 10\.88\.0\.1-10\.88\.0\.2 \(1 of 1"):
        scratch.add(bridge, config("10.88.0.0/30"), "c1", netns)
    clean(netns, {"lo"})


def test_an_exhausted_second_range_gives_the_first_address_back(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    scratch.add(bridge, config("10.88.0.0/24", "10.99.0.0/30"), "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(Exhausted, match=r"10\.99\.0\.1"):
        scratch.add(bridge, config("10.88.0.0/24", "10.99.0.0/30"), "c1", netns)
    clean(netns, {"lo"})


def test_a_name_that_is_no_bridge_leaves_nothing(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match='"lo" already exists but is not a bridge'):
        scratch.add(bridge, config(bridge="lo"), "c1", netns)
    clean(netns, {"lo"})


def test_an_unreachable_gateway_leaves_nothing(scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean) -> None:
    netns, network = scratch.container(), config("10.88.0.0/24", ipMasq=True)
    network["ipam"]["routes"] = [{"dst": "10.1.0.0/16", "gw": "172.16.0.1"}]
    with pytest.raises(PluginError, match=r"cannot add route 10\.1\.0\.0/16 via 172\.16\.0\.1"):
        scratch.add(bridge, network, "c1", netns)
    clean(netns, {"lo"})


def test_another_address_on_the_bridge_leaves_nothing(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    scratch.add(bridge, config("10.99.0.0/24", name="other"), "c0", scratch.container())
    netns = scratch.container()
    with pytest.raises(InvalidRequest, match=r'"br0" already has an IP address different from 10\.88\.0\.1/24'):
        scratch.add(bridge, config("10.88.0.0/24"), "c1", netns)
    clean(netns, {"lo"})


def test_force_address_replaces_another_address_of_the_bridge(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    scratch.add(bridge, config("10.99.0.0/24", name="other"), "c0", scratch.container())
    scratch.add(bridge, config("10.88.0.0/24", forceAddress=True), "c1", scratch.container())
    assert {one for one in look(scratch.host_netns).addresses if one.startswith("br0")} == {"br0 10.88.0.1/24"}


def test_v6_subnets_conflict_only_where_they_overlap(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    scratch.add(bridge, config("fd00:99::/64", name="other"), "c0", scratch.container())
    scratch.add(bridge, config("fd00:88::/64"), "c1", scratch.container())
    assert {one for one in look(scratch.host_netns).addresses if one.startswith("br0")} == {
        "br0 fd00:88::1/64",
        "br0 fd00:99::1/64",
    }
    overlapping = config("fd00:99::/56", name="third")
    overlapping["ipam"]["ranges"][0][0]["gateway"] = "fd00:99::7"
    with pytest.raises(InvalidRequest, match="already has an IP address different"):
        scratch.add(bridge, overlapping, "c2", scratch.container())


def test_a_table_that_cannot_be_used_leaves_nothing(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean
) -> None:
    """A set of our name with another key type stands in the way of the transaction."""
    from pyroute2.netlink.nfnetlink.nftsocket import nft_set_msg  # noqa: PLC0415  only this test breaks the table

    def obstruct() -> None:
        message = nft_set_msg()
        message["nfgen_family"] = 1
        message["attrs"] = [
            ("NFTA_SET_TABLE", nft.TABLE),
            ("NFTA_SET_NAME", "net_10.88.0.0/24"),
            ("NFTA_SET_KEY_TYPE", 12),
            ("NFTA_SET_KEY_LEN", 2),
            ("NFTA_SET_ID", 1),
        ]
        message["header"]["type"] = 10 << 8 | nft.NFT_MSG_NEWSET
        message["header"]["flags"] = 0x605
        message.encode()
        with Netlink(12) as netlink:
            batch = [(nft.begin(), False), *((one, True) for one in nft.table())]
            answers = netlink.exchange([*batch, (bytearray(message.data), True), (nft.end(), False)])
            assert not any(answer.error for answer in answers)

    scratch.on_host(obstruct)
    netns = scratch.container()
    with pytest.raises(PluginError, match=r"masquerade 10\.88\.0\.2/24"):
        scratch.add(bridge, config("10.88.0.0/24", ipMasq=True), "c1", netns)
    clean(netns, {"lo"})


def test_an_unwritable_address_folder_leaves_nothing(
    scratch: ScratchCni, bridge: Bridge, config: Make, clean: Clean, tmp_path: Path
) -> None:
    netns, network = scratch.container(), config()
    (tmp_path / "file").write_text("")
    network["ipam"]["dataDir"] = str(tmp_path / "file")
    with pytest.raises(PluginError, match="cannot open the lock"):
        scratch.add(bridge, network, "c1", netns)
    clean(netns, {"lo"})


def test_a_failed_repetition_leaves_the_attachment_as_it_was(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    first = scratch.add(bridge, config("10.88.0.0/24"), "c1", netns)
    before = look(netns), look(scratch.host_netns)
    broken = config("10.88.0.0/24")
    broken["ipam"]["routes"] = [{"dst": "10.1.0.0/16", "gw": "172.16.0.1"}]
    with pytest.raises(PluginError, match="cannot add route"):
        scratch.add(bridge, broken, "c1", netns)
    assert (look(netns), look(scratch.host_netns)) == before
    assert scratch.add(bridge, config("10.88.0.0/24"), "c1", netns) == first


def test_a_host_name_of_another_attachment_is_refused_and_left_alone(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    name = Attachment("net", "c1", "eth0").host_veth

    def relabel() -> None:
        data = messages.mark_port(hairpin=False).fill(name=name.encode(), label=b"nodeplug net c9 eth0")
        with Netlink() as netlink:
            netlink.ask(Request(data, "relabel"))

    scratch.on_host(relabel)
    with pytest.raises(TryAgain, match="belongs to 'nodeplug net c9 eth0'"):
        scratch.add(bridge, config(), "c1", scratch.container())
    scratch.delete(bridge, config(), "c1", netns)

    def find() -> Any:
        with Netlink() as netlink:
            return Links(netlink).get(name)

    assert scratch.on_host(find) is not None


def test_no_descriptor_is_left_open_by_success_or_failure(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    netns = scratch.container()

    def cycle() -> None:
        result = scratch.add(bridge, config(ipMasq=True), "c1", netns)
        scratch.add(bridge, config(ipMasq=True), "c1", netns)
        scratch.check(bridge, config(ipMasq=True), "c1", netns, result)
        scratch.status(bridge, config(ipMasq=True))
        scratch.gc(bridge, config(ipMasq=True), [("c1", "eth0")])
        scratch.delete(bridge, config(ipMasq=True), "c1", netns)
        with pytest.raises(PluginError):
            scratch.add(bridge, config(mtu=100000), "c1", netns)

    def descriptors() -> set[str]:
        return {link.name for link in Path("/proc/self/fd").iterdir() if link.exists()}

    cycle()
    settle()
    before = descriptors()
    for _ in range(5):
        cycle()
    settle()
    assert descriptors() == before


def settle() -> None:
    """Wait for the reapers: they own a socket each while the kernel works."""
    for thread in threading.enumerate():
        if thread.name == "link-reaper":
            thread.join()


# --- foreign IPAM -------------------------------------------------------------------------------------------------


def foreign(config: Make, **keys: Any) -> dict[str, Any]:
    return {**config(**keys), "ipam": {"type": "other-ipam"}}


def test_a_foreign_ipam_plugin_serves_every_verb(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam
) -> None:
    netns, network = scratch.container(), foreign(config)
    result = scratch.add(bridge, network, "c1", netns)
    assert [(str(ip.address), ip.interface) for ip in result.ips] == [("10.77.0.9/24", 2)]
    scratch.check(bridge, network, "c1", netns, result)
    scratch.status(bridge, network)
    scratch.gc(bridge, network, [("c1", "eth0")])
    scratch.delete(bridge, network, "c1", netns)
    assert ipam.calls == [f"other-ipam {verb}" for verb in ("ADD", "CHECK", "STATUS", "GC", "DEL")]


def test_a_repeated_add_does_not_ask_a_foreign_ipam_plugin_again(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam
) -> None:
    netns, network = scratch.container(), foreign(config)
    first = scratch.add(bridge, network, "c1", netns)
    restarted = Bridge(BridgeConfig(data_dir=scratch.folder / "networks"), scratch.host)
    assert scratch.add(restarted, network, "c1", netns) == first
    assert ipam.calls == ["other-ipam ADD"]


def test_a_reboot_forgets_what_a_foreign_ipam_plugin_answered(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam
) -> None:
    scratch.add(bridge, foreign(config), "c1", scratch.container())
    host = replace(scratch.host, boot_id="boot-2", journal=Journal(scratch.folder / "journal", "boot-2"))
    Bridge(BridgeConfig(data_dir=scratch.folder / "networks"), host).start()
    assert host.journal.entries() == ()


def test_gc_forgets_what_a_foreign_ipam_plugin_answered(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam
) -> None:
    network = config(ipam={"type": "other"})
    scratch.add(bridge, network, "c1", scratch.container())
    scratch.add(bridge, network, "c2", scratch.container())
    scratch.gc(bridge, network, None)
    assert len(scratch.host.journal.entries()) == 2
    scratch.gc(bridge, network, [("c2", "eth0")])
    assert [entry.key for entry in scratch.host.journal.entries()] == ["ipam nodeplug net c2 eth0"]
    ipam.holder.clear()
    ipam.result = replace(ipam.result, ips=(CniIp(ip_interface("10.77.0.10/24"), ip_address("10.77.0.1")),))
    again = scratch.add(bridge, network, "c1", scratch.container())
    assert str(again.ips[0].address) == "10.77.0.10/24"


def test_masquerading_ends_before_a_foreign_ipam_plugin_frees_the_address(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam
) -> None:
    network = config(ipam={"type": "other"}, ipMasq=True)
    seen: list[tuple[object, list[Any]]] = []
    scratch.add(bridge, network, "c1", scratch.container())

    class Looking(set[str]):
        def discard(self, element: object) -> None:
            with Netlink(12) as netlink:
                seen.append((element, Masquerade(netlink).entries("nodeplug net ")))

    ipam.holder = Looking()
    scratch.delete(bridge, network, "c1", None)
    assert seen == [("c1", [])]


def test_a_failing_foreign_ipam_plugin_gets_its_del_and_leaves_nothing(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam, clean: Clean
) -> None:
    netns = scratch.container()
    ipam.failure = DelegateFailed("no lease", code=123)
    with pytest.raises(DelegateFailed, match="no lease") as refusal:
        scratch.add(bridge, foreign(config), "c1", netns)
    assert refusal.value.code == 123
    assert ipam.calls == ["other-ipam ADD", "other-ipam DEL"]
    clean(netns, {"lo"})


def test_a_failure_behind_a_foreign_ipam_plugin_gives_its_address_back(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam, clean: Clean
) -> None:
    netns = scratch.container()
    ipam.result = replace(
        ipam.result, routes=(CniRoute(ip_interface("10.1.0.0/16").network, ip_address("172.16.0.1")),)
    )
    with pytest.raises(PluginError, match="cannot add route"):
        scratch.add(bridge, foreign(config), "c1", netns)
    assert ipam.holder == set()
    clean(netns, {"lo"})
    ipam.result = replace(ipam.result, routes=())
    assert scratch.add(bridge, foreign(config), "c1", netns).routes[0].gw == ip_address("10.77.0.1")


def test_a_foreign_ipam_plugin_without_address_is_an_error(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam, clean: Clean
) -> None:
    netns = scratch.container()
    ipam.result = CniResult()
    with pytest.raises(InvalidRequest, match="other-ipam returned missing IP config"):
        scratch.add(bridge, foreign(config), "c1", netns)
    assert ipam.calls == ["other-ipam ADD", "other-ipam DEL"]
    clean(netns, {"lo"})


def test_a_del_that_fails_in_ipam_removes_the_link_all_the_same(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    scratch.add(bridge, foreign(config, ipMasq=True), "c1", netns)

    def refuse(request: CniRequest, plugin_type: str, config: Mapping[str, Any]) -> CniResult | None:
        raise DelegateFailed(f"{plugin_type} cannot {type(request).__name__} {config['name']}", code=100)

    broken = replace(scratch.host, _delegate=refuse)
    plugin = Bridge(BridgeConfig(data_dir=scratch.folder / "networks"), broken)
    with pytest.raises(DelegateFailed, match="cannot CniDel"):
        scratch.delete(plugin, foreign(config), "c1", netns)
    plugin.stop()
    assert look(netns).links == {"lo"}
