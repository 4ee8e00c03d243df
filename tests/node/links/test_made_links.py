"""What all plugins do that make an interface in the container alone, whatever its kind.

Where the kernel has no links of a kind, its cases are skipped by that name: macvlan shows then that the rest holds.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.node.killed_call import killed_call

from nodeplug import (
    CniDns,
    CniInterface,
    CniResult,
    Exhausted,
    InvalidRequest,
    LimitedConnectivity,
    Netns,
    NotReady,
    PluginError,
)
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.dummy.plugin import Dummy, DummyConfig
from nodeplug_net.ipvlan.plugin import Ipvlan, IpvlanConfig
from nodeplug_net.macvlan.plugin import Macvlan, MacvlanConfig
from nodeplug_net.vlan.plugin import Vlan, VlanConfig

Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]
PLUGINS: dict[str, tuple[Any, Any]] = {
    "dummy": (Dummy, DummyConfig),
    "ipvlan": (Ipvlan, IpvlanConfig),
    "macvlan": (Macvlan, MacvlanConfig),
    "vlan": (Vlan, VlanConfig),
}
KEYS: dict[str, dict[str, Any]] = {"dummy": {}, "vlan": {"master": "up0", "vlanId": 5}}
KINDS = [pytest.param(kind, marks=pytest.mark.link_kind(kind)) for kind in PLUGINS]
ON_TOP = [pytest.param(kind, marks=pytest.mark.link_kind(kind)) for kind in PLUGINS if kind != "dummy"]


@dataclass(frozen=True)
class Made:
    """One plugin, on a host whose interface up0 leads to up1."""

    kind: str
    scratch: ScratchCni
    plugin: Any
    containers: list[Netns] = field(default_factory=list)

    def network(self, *subnets: str, **keys: Any) -> dict[str, Any]:
        ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.88.0.0/24",)]
        config = {"cniVersion": "1.1.0", "name": "net", "type": f"nodeplug-{self.kind}"}
        own = KEYS.get(self.kind, {"master": "up0"})
        return {**config, "ipam": {"type": "host-local", "ranges": ranges}, **own, **keys}

    def add(self, netns: Netns, config: dict[str, Any] | None = None, container: str = "c1") -> CniResult:
        return self.scratch.add(self.plugin, config or self.network(), container, netns)

    def check(self, netns: Netns, result: CniResult, config: dict[str, Any] | None = None) -> None:
        self.scratch.check(self.plugin, config or self.network(), "c1", netns, result)

    def delete(self, netns: Netns | None, config: dict[str, Any] | None = None) -> None:
        self.scratch.delete(self.plugin, config or self.network(), "c1", netns)


@pytest.fixture
def make(scratch: ScratchCni, eyes: Any) -> Callable[[str], Made]:
    def wire(route: Any) -> None:
        route.link("add", ifname="up0", kind="veth", peer="up1", mtu=1500)
        for name in ("up0", "up1"):
            route.link("set", index=route.link_lookup(ifname=name)[0], state="up")

    eyes.change(scratch.host_netns, wire)

    def plugin(kind: str) -> Made:
        cls, config = PLUGINS[kind]
        made = cls(config(data_dir=scratch.folder / "networks"), scratch.host)
        scratch.on_host(made.start)
        return Made(kind, scratch, made)

    return plugin


@pytest.fixture
def made(kind: str, make: Callable[[str], Made]) -> Made:
    return make(kind)


@pytest.mark.parametrize("kind", KINDS)
def test_the_container_has_the_interface_until_del(scratch: ScratchCni, made: Made, eyes: Any, look: Look) -> None:
    netns = scratch.container()
    result = made.add(netns)
    link = eyes.link(netns)
    assert (link.kind, link.is_up) == (made.kind, True)
    assert result.interfaces == (CniInterface("eth0", mac=link.mac, sandbox=netns.path),)
    assert [(str(ip.address), ip.interface) for ip in result.ips] == [("10.88.0.2/24", 0)]
    made.check(netns, result)
    for _ in range(2):
        made.delete(netns)
        assert (look(netns).links, eyes.held()) == ({"lo"}, [])


@pytest.mark.parametrize("kind", ON_TOP)
def test_two_containers_reach_each_other(scratch: ScratchCni, made: Made, ping: Ping) -> None:
    one, other = scratch.container(), scratch.container()
    made.add(one)
    if made.kind == "vlan":  # an interface carries a VLAN once: the other container is behind the wire
        made.add(other, made.network(master="up1"), "c2")
    else:
        made.add(other, container="c2")
    assert ping(one, "10.88.0.3")
    assert ping(other, "10.88.0.2")


@pytest.mark.parametrize("kind", KINDS)
def test_a_repeated_add_returns_the_same(scratch: ScratchCni, made: Made, look: Look) -> None:
    netns = scratch.container()
    first = made.add(netns)
    before = look(netns)
    assert made.add(netns) == first
    assert look(netns) == before


@pytest.mark.parametrize("kind", ON_TOP)
def test_mtu_and_dns_are_those_of_the_network(scratch: ScratchCni, made: Made, eyes: Any) -> None:
    netns, config = scratch.container(), made.network(mtu=1400, dns={"domain": "a"})
    result = made.add(netns, config)
    assert eyes.link(netns).mtu == 1400
    assert result.dns == CniDns(domain="a")
    made.check(netns, result, config)


@pytest.mark.parametrize("kind", ON_TOP)
def test_the_interface_below_may_be_in_the_container(scratch: ScratchCni, made: Made, eyes: Any) -> None:
    netns, config = scratch.container(), made.network(master="own0", linkInContainer=True)
    eyes.change(netns, lambda ip: ip.link("add", ifname="own0", kind="veth", peer="own1", state="up"))
    result = made.add(netns, config)
    assert eyes.link(netns).peer == eyes.link(netns, "own0").index
    made.check(netns, result, config)


@pytest.mark.parametrize("kind", KINDS)
def test_del_without_a_namespace_releases_the_addresses(scratch: ScratchCni, made: Made, eyes: Any) -> None:
    made.add(scratch.container())
    made.delete(None)
    assert eyes.held() == []


@pytest.mark.parametrize("kind", KINDS)
def test_gc_releases_what_is_not_valid(scratch: ScratchCni, made: Made, eyes: Any) -> None:
    made.add(scratch.container())
    config = made.network(vlanId=6) if made.kind == "vlan" else made.network()
    made.add(scratch.container(), config, "c2")
    scratch.gc(made.plugin, made.network(), None)
    scratch.gc(made.plugin, made.network(), [("c2", "eth0")])
    assert eyes.held() == ["10.88.0.3"]


@pytest.mark.parametrize("kind", KINDS)
def test_an_add_killed_at_any_message_is_ended_by_del_and_completed_by_add(
    scratch: ScratchCni, made: Made, eyes: Any, look: Look
) -> None:
    netns, points = scratch.container(), 0
    while killed_call(lambda: made.add(netns), points):
        made.delete(netns)
        assert (look(netns).links, eyes.held()) == ({"lo"}, [])
        assert killed_call(lambda: made.add(netns), points)
        made.check(netns, made.add(netns))
        assert look(netns).links == {"lo", "eth0"}
        made.delete(netns)
        assert (look(netns).links, eyes.held()) == ({"lo"}, [])
        points += 1
    assert points > 4


@pytest.mark.parametrize("kind", KINDS)
def test_check_names_what_is_lost(scratch: ScratchCni, made: Made, eyes: Any) -> None:
    netns = scratch.container()
    result = made.add(netns)
    index = eyes.link(netns).index
    eyes.change(netns, lambda ip: ip.addr("del", index=index, address="10.88.0.2", prefixlen=24))
    with pytest.raises(PluginError, match=r"lost its address 10\.88\.0\.2/24"):
        made.check(netns, result)
    eyes.change(netns, lambda ip: ip.link("set", index=index, state="down"))
    with pytest.raises(PluginError, match="eth0 is down"):
        made.check(netns, result)
    eyes.change(netns, lambda ip: ip.link("del", index=index))
    with pytest.raises(PluginError, match="eth0 does not exist"):
        made.check(netns, result)
    eyes.change(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    with pytest.raises(PluginError, match=f"eth0 is veth, not {made.kind}"):
        made.check(netns, result)


@pytest.mark.link_kind("ipvlan")
def test_check_of_an_ipvlan_names_another_mode(scratch: ScratchCni, make: Callable[[str], Made]) -> None:
    made, netns = make("ipvlan"), scratch.container()
    result = made.add(netns, made.network(mode="l3"))
    made.check(netns, result, made.network(mode="l3"))
    with pytest.raises(PluginError, match="Container IPVlan mode l3 does not match expected value: l2"):
        made.check(netns, result)


@pytest.mark.link_kind("ipvlan")
def test_an_ipvlan_takes_what_the_plugin_before_has(
    scratch: ScratchCni, make: Callable[[str], Made], eyes: Any
) -> None:
    made, netns, first = make("ipvlan"), scratch.container(), scratch.container()
    before = scratch.add(made.plugin, made.network(), "c0", first)
    scratch.delete(
        made.plugin, made.network(), "c0", first
    )  # the kernel gives an address to one ipvlan of an interface
    config = {key: value for key, value in made.network().items() if key not in {"ipam", "master"}}
    given = CniResult(interfaces=(CniInterface("up0"),), ips=before.ips, routes=before.routes)
    result = scratch.add(made.plugin, config, "c1", netns, prev_result=given)
    assert (result.ips, eyes.link(netns).peer) == (before.ips, eyes.link(scratch.host_netns, "up0").index)
    made.check(netns, result, config)


@pytest.mark.link_kind("vlan")
def test_check_of_a_vlan_names_another_number_and_mtu(scratch: ScratchCni, make: Callable[[str], Made]) -> None:
    made, netns = make("vlan"), scratch.container()
    result = made.add(netns)
    with pytest.raises(PluginError, match=r"eth0 is in VLAN 5, not 7; .*MTU of eth0 is 1400, current value is 1500"):
        made.check(netns, result, made.network(vlanId=7, mtu=1400))


# --- what needs no link of the kind


@pytest.mark.parametrize("kind", PLUGINS)
def test_a_name_that_is_taken_and_a_range_that_is_full_leave_everything_as_it_was(
    scratch: ScratchCni, made: Made, eyes: Any, look: Look
) -> None:
    netns = scratch.container()
    eyes.change(netns, lambda ip: ip.link("add", ifname="eth0", kind="veth", peer="other0"))
    said = "create dummy" if made.kind == "dummy" else f'rename {made.kind} to "eth0"'
    with pytest.raises(InvalidRequest, match=f"failed to {said}: file exists"):
        made.add(netns)
    made.delete(netns)
    assert (look(netns).links, eyes.held()) == ({"lo", "eth0", "other0"}, [])
    (scratch.folder / "networks/net").mkdir(parents=True, exist_ok=True)
    (scratch.folder / "networks/net/10.88.0.2").write_text("other\r\neth0")
    full, free = made.network("10.88.0.0/30"), scratch.container()
    with pytest.raises(Exhausted, match="no IP addresses available") as failure:
        made.add(free, full)
    assert failure.value.message.startswith("failed to execute IPAM delegate: ") == (made.kind == "vlan")
    assert look(free).links == {"lo"}
    with pytest.raises(NotReady, match="0 of 1 addresses free"):
        scratch.status(made.plugin, full)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("dummy", {"ipam": {}}, "dummy interface requires an IPAM configuration"),
    ("ipvlan", {"master": "nope"}, 'failed to lookup master "nope": Link not found'),
    ("ipvlan", {"master": ""}, "no default route interface found"),
    ("ipvlan", {"mode": "l4"}, 'unknown ipvlan mode: "l4"'),
    ("ipvlan", {"mtu": "1"}, "failed to load netconf: key 'mtu'"),
    ("ipvlan", {"ipam": {}}, "no plugin name provided"),
    ("vlan", {"master": ""}, '"master" field is required. It specifies the host interface name to create the VLAN for'),
    ("vlan", {"master": "nope"}, "Link not found"),
    ("vlan", {"vlanId": 4095}, r"invalid VLAN ID 4095 \(must be between 0 and 4095 inclusive\)"),
    ("vlan", {"vlanId": -1}, r"invalid VLAN ID -1 \(must"),
    ("vlan", {"mtu": 9000}, r"invalid MTU 9000, must be \[0, master MTU\(1500\)\]"),
    ("vlan", {"ipam": {}}, "failed to execute IPAM delegate: no plugin name provided"),
]


@pytest.mark.parametrize(("kind", "keys", "said"), REFUSED, ids=str)
def test_what_cannot_be_is_refused_and_nothing_is_made(
    scratch: ScratchCni, made: Made, eyes: Any, look: Look, keys: dict[str, Any], said: str
) -> None:
    netns, config = scratch.container(), made.network(**keys)
    with pytest.raises(InvalidRequest, match=said):
        made.add(netns, config)
    made.delete(netns, config)
    assert (look(netns).links, eyes.held()) == ({"lo"}, [])


def test_an_ipvlan_after_a_plugin_with_several_interfaces_wants_a_master(
    scratch: ScratchCni, make: Callable[[str], Made]
) -> None:
    made = make("ipvlan")
    given = CniResult(interfaces=(CniInterface("a"), CniInterface("b")))
    with pytest.raises(InvalidRequest, match=r"chained master failure\. PrevResult lacks a single named interface"):
        scratch.add(made.plugin, made.network(master=""), "c1", scratch.container(), prev_result=given)


@pytest.mark.parametrize("kind", ON_TOP)
def test_status_is_limited_while_containers_are_on_an_interface_that_is_missing_or_down(
    scratch: ScratchCni, made: Made, eyes: Any
) -> None:
    netns, host = scratch.container(), scratch.host_netns
    made.add(netns)
    eyes.change(host, lambda ip: ip.link("set", index=ip.link_lookup(ifname="up0")[0], state="down"))
    with pytest.raises(LimitedConnectivity, match="interface up0 is down; set it up; 1 attached container has no"):
        scratch.status(made.plugin, made.network())
    eyes.change(host, lambda ip: ip.link("del", index=ip.link_lookup(ifname="up0")[0]))
    with pytest.raises(LimitedConnectivity, match=r"Link not found; .* 1 attached container has no"):
        scratch.status(made.plugin, made.network())
    made.delete(netns)
    with pytest.raises(NotReady, match="Link not found") as refusal:
        scratch.status(made.plugin, made.network())
    assert not isinstance(refusal.value, LimitedConnectivity)


@pytest.mark.parametrize("kind", ["ipvlan", "macvlan", "vlan"])
def test_status_reports_an_interface_below_that_is_missing_or_down(scratch: ScratchCni, made: Made, eyes: Any) -> None:
    scratch.status(made.plugin, made.network())
    with pytest.raises(NotReady, match="Link not found"):
        scratch.status(made.plugin, made.network(master="nope"))
    host = scratch.host_netns
    eyes.change(host, lambda ip: ip.link("set", index=ip.link_lookup(ifname="up0")[0], state="down"))
    with pytest.raises(NotReady, match="interface up0 is down"):
        scratch.status(made.plugin, made.network())
