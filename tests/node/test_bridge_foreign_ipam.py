"""A bridge whose addresses come from another IPAM plugin: each verb is delegated, each failure is undone."""

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
    InvalidRequest,
    Journal,
    Netns,
    PluginError,
)
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.nftables.masquerade import Masquerade

Make = Callable[..., dict[str, Any]]
Look = Callable[[Netns], Any]


class ForeignIpam:
    """Stands for an IPAM plugin on CNI_PATH: notes each verb, and refuses a second ADD as host-local does."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.holder: set[str] = set()
        self.failure: PluginError | None = None
        self.result = CniResult(
            ips=(CniIp(ip_interface("10.77.0.9/24"), gateway=ip_address("10.77.0.1")),),
            routes=(CniRoute(ip_interface("10.1.0.0/16").network, gw=None, mtu=1300),),
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


Clean = Callable[[Netns, set[str]], None]


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


@pytest.mark.parametrize("kind", ["static", "nodeplug-static"])
def test_addresses_of_a_configuration_need_no_other_program(
    scratch: ScratchCni, bridge: Bridge, config: Make, ipam: ForeignIpam, look: Look, clean: Clean, kind: str
) -> None:
    netns = scratch.container()
    addresses = [{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}, {"address": "fd77::5/64"}]
    network = config(ipam={"type": kind, "addresses": addresses}, ipMasq=True)
    result = scratch.add(bridge, network, "c1", netns, args_text="GATEWAY=10.77.0.9;MAC=02:00:00:00:00:07")
    assert {"eth0 10.77.0.5/24", "eth0 fd77::5/64"} <= look(netns).addresses
    assert scratch.add(bridge, network, "c1", netns) == replace(result, interfaces=result.interfaces)
    scratch.check(bridge, network, "c1", netns, result)
    scratch.status(bridge, network)
    scratch.gc(bridge, network, [("c1", "eth0")])
    scratch.delete(bridge, network, "c1", None)
    clean(netns, {"lo"})
    assert (ipam.calls, [entry.key for entry in scratch.host.journal.entries() if entry.phase == "ipam"]) == ([], [])


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
    ipam.result = replace(ipam.result, ips=(CniIp(ip_interface("10.77.0.10/24"), gateway=ip_address("10.77.0.1")),))
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
        ipam.result, routes=(CniRoute(ip_interface("10.1.0.0/16").network, gw=ip_address("172.16.0.1")),)
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
    with pytest.raises(InvalidRequest, match=r"returned missing IP config; .* other-ipam"):
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
