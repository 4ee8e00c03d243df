"""What a running container lost of its own is named at once everywhere, and restored if that was chosen."""

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.node.level.lab import Looked, run

from nodeplug import CniCheck, CniResult, Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug.testing.waiting import until
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.level import containers
from nodeplug_net.level.containers import GRACE, SHARES, Containers
from nodeplug_net.level.events import ANYWHERE
from nodeplug_net.nftables.masquerade import Masquerade
from nodeplug_net.nftables.sockets import open_nft
from nodeplug_net.reference import way_back
from nodeplug_net.reference.recorded import Node
from nodeplug_net.reference.way_back import Entry

Config = Callable[..., dict[str, Any]]
Make = Callable[..., Looked]
VETH = Attachment("net", "c1", "eth0").host_veth


@pytest.fixture
def make(scratch: ScratchCni, config: Config, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    monkeypatch.setattr(containers, "QUIET", 0.0)
    made: list[Looked] = []

    def begin(name: str, **keys: Any) -> Looked:
        more = {"master": "up0"} if name == "macvlan" else {}
        if more:
            run(scratch.host_netns, "ip link add up0 type veth peer name up1")
            run(scratch.host_netns, "ip link set up0 up")
        network = {**config("10.88.0.0/24", cniVersion="1.1.0", type=f"nodeplug-{name}"), **more, **keys}
        if name == "tap":
            if not Path("/dev/net/tun").exists():
                pytest.skip("needs /dev/net/tun")
            del network["bridge"]
        made.append(Looked(scratch, name, network))
        return made[-1]

    yield begin
    for one in made:
        one.stop()


DAMAGE = [
    ("bridge", "ip route del default", "route 0.0.0.0/0 via 10.88.0.1 is missing"),
    ("bridge", "ip address del 10.88.0.2/24 dev eth0", "interface eth0 lost its address 10.88.0.2/24"),
    ("bridge", "ip link set eth0 down", "interface eth0 is down"),
    ("bridge", "ip route replace default via 10.88.0.9", "route 0.0.0.0/0 via 10.88.0.1 is missing"),
    ("ptp", "ip route del 10.88.0.0/24", "route 10.88.0.0/24 via 10.88.0.1 is missing"),
    ("macvlan", "ip address flush dev eth0", "interface eth0 lost its address 10.88.0.2/24"),
    ("tap", "ip link del eth0", "interface eth0 does not exist"),
]


def lost(looked: Looked, text: str) -> bool:
    return bool(looked.told) and f"container c1: {text}" in looked.told[-1]


@pytest.mark.parametrize(("name", "damage", "text"), DAMAGE)
def test_what_a_container_lost_is_told_by_health_status_and_metrics(
    make: Make, name: str, damage: str, text: str
) -> None:
    looked = make(name)
    plugin = looked.start()
    netns, _ = looked.add()
    looked.health()
    until(lambda: settled(plugin))
    run(netns, damage)
    until(lambda: lost(looked, text), found=lambda: str(looked.told))
    assert looked.missing() == [(1.0, "net")]
    assert text in looked.status()
    looked.scratch.delete(plugin, looked.network, "c1", netns)
    assert looked.status() == ""
    assert looked.health() == ""


def settled(plugin: Any) -> bool:
    """Whether what the kernel told of the ADD itself has passed, which is no news."""
    known = plugin._level.containers
    return not known._known or known.concerned([ANYWHERE])


@pytest.mark.parametrize(("name", "damage", "text"), DAMAGE)
def test_by_choice_a_container_gets_back_what_it_lost(make: Make, name: str, damage: str, text: str) -> None:
    looked = make(name)
    looked.start(repair_containers=True)
    netns, result = looked.add()
    looked.health()
    until(lambda: settled(looked.plugin))
    run(netns, damage)
    until(lambda: looked.restored() == [(1.0, "net")], found=lambda: f"{looked.told} instead of {text}")
    assert looked.checks(netns, result)
    assert looked.status() == ""


def test_where_chosen_status_says_nothing_of_containers(make: Make) -> None:
    looked = make("bridge")
    looked.start(status_containers=False)
    netns, _ = looked.add()
    run(netns, "ip route del default")
    assert "route 0.0.0.0/0" in looked.health()
    assert looked.status() == ""


HOST = [
    "ip address del 10.88.0.1/32 dev PORT",
    "ip route del 10.88.0.2 dev PORT",
    "ip link set PORT down",
]


@pytest.mark.parametrize("damage", HOST)
def test_the_host_end_that_is_a_gateway_gets_back_its_address_and_its_route(
    make: Make, damage: str, ping: Callable[[Netns, str], bool]
) -> None:
    looked = make("ptp")
    looked.start()
    netns, result = looked.add()
    until(lambda: looked.told[-1:] == [""])
    run(looked.scratch.host_netns, damage.replace("PORT", VETH))
    until(lambda: looked.restored() == [(1.0, "net")], found=lambda: str(looked.told))
    until(lambda: looked.checks(netns, result))
    assert ping(netns, "10.88.0.1")
    assert ping(looked.scratch.host_netns, "10.88.0.2")


def test_a_route_that_a_newer_container_took_over_is_not_taken_back(make: Make) -> None:
    looked = make("ptp")
    looked.start()
    looked.add()
    (looked.scratch.folder / "networks" / "net" / "10.88.0.2").unlink()
    looked.network["ipam"] = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24", "rangeEnd": "10.88.0.2"}]]}
    looked.add("c2")
    assert looked.health() == ""
    newer = Attachment("net", "c2", "eth0").host_veth
    assert newer in run(looked.scratch.host_netns, "ip route show 10.88.0.2")


@pytest.mark.parametrize(
    "damage", ["ip rule del from 10.88.0.2", "ip route flush table 100", "ip route del default table 100"]
)
@pytest.mark.parametrize("chosen", [False, True])
def test_rules_and_tables_of_sbr_are_looked_after(make: Make, bridge: Bridge, damage: str, chosen: bool) -> None:
    looked = make("sbr", bridge="br0")
    looked.start(repair_containers=chosen)
    netns = looked.scratch.container()
    before = looked.scratch.add(bridge, {**looked.network, "type": "nodeplug-bridge"}, "c1", netns)
    looked.add(before=before, netns=netns)
    looked.health()
    until(lambda: settled(looked.plugin))
    run(netns, damage)
    if chosen:
        until(lambda: looked.restored() == [(1.0, "net")], found=lambda: str(looked.told))
        assert looked.checks(netns, before)
    else:
        until(lambda: "address 10.88.0.2" in looked.told[-1], found=lambda: str(looked.told))
        assert "address 10.88.0.2" in looked.status()


@pytest.mark.parametrize("chosen", [False, True])
def test_a_sysctl_that_somebody_wrote_is_noticed_by_asking(make: Make, bridge: Bridge, chosen: bool) -> None:
    looked = make("tuning", bridge="br0", sysctl={"net.ipv4.conf.eth0.arp_filter": "1"})
    looked.start(repair_containers=chosen)
    netns = looked.scratch.container()
    before: CniResult = looked.scratch.add(bridge, {**looked.network, "type": "nodeplug-bridge"}, "c1", netns)
    looked.add(before=before, netns=netns)
    looked.health()
    run(netns, "sysctl -w net.ipv4.conf.eth0.arp_filter=0")
    if chosen:
        until(lambda: looked.restored() == [(1.0, "net")], found=lambda: str(looked.told))
        assert looked.checks(netns, before)
    else:
        until(lambda: "arp_filter is 1, current value is 0" in looked.told[-1], found=lambda: str(looked.told))
        assert "arp_filter" in looked.status()


def test_who_is_attached_is_known_again_after_the_daemon_was_killed(make: Make) -> None:
    looked = make("bridge", macspoofchk=True)
    looked.start(repair_containers=True)
    netns, result = looked.add()
    looked.start(repair_containers=True)  # the one before was not stopped
    looked.made.pop(0).stop()
    run(looked.scratch.host_netns, "nft flush ruleset")
    run(netns, "ip address flush dev eth0")
    # The plugin's own look may have been before the flush, and what the kernel tells of it comes later.
    until(lambda: looked.health() == "" and looked.checks(netns, result), found=lambda: str(looked.told))
    run(looked.scratch.host_netns, f"ip link del {VETH}")
    until(lambda: looked.health() == "" and looked.checks(netns, result), found=lambda: str(looked.told))


def test_a_namespace_in_which_something_happens_all_the_time_is_looked_at_now_and_then(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked = make("bridge")
    monkeypatch.setattr(containers, "QUIET", 0.5)
    known = looked.start()._level.containers
    looked.add()
    until(lambda: known.concerned([ANYWHERE]))
    assert not known.concerned([ANYWHERE])
    until(lambda: (overdue := known.asked()) is not None and overdue())
    assert known.asked() is None


def test_of_many_interfaces_in_one_namespace_the_one_is_looked_at_that_lost_something(make: Make) -> None:
    looked = make("bridge")
    looked.start()
    netns, _ = looked.add()
    other = {"container_id": "c2", "netns": netns, "ifname": "eth1"}
    looked.scratch.add(looked.plugin, looked.network, **other)
    looked.health()
    known, compared = looked.plugin._level.containers, list[str]()
    differences: Callable[[CniCheck], Iterable[str]] = known.differences

    def noted(request: CniCheck) -> Iterable[str]:
        compared.append(request.ifname)
        return differences(request)

    known.differences = noted
    until(lambda: all(time.monotonic() - one.since > GRACE for one in known._known.values()))
    run(netns, "ip address del 10.88.0.3/24 dev eth1")
    until(lambda: "interface eth1 lost its address" in looked.told[-1], found=lambda: str(looked.told))
    assert set(compared) == {"eth1"}


def test_each_container_is_compared_now_and_then_though_the_kernel_tells_nothing(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Containers, "concerned", lambda *_: False)
    looked = make("bridge")
    looked.start()
    for number in range(4):
        looked.add(f"c{number}")
    looked.health()
    known, compared = looked.plugin._level.containers, list[str]()

    def noted(request: CniCheck) -> Iterable[str]:
        compared.append(request.container_id)
        return ()

    known.differences = noted
    for _ in range(SHARES):
        before = len(compared)
        looked.health()
        assert len(compared) - before == 2
    assert set(compared) == {"c0", "c1", "c2", "c3"}


def test_what_is_handed_over_to_the_reference_is_neither_missing_nor_restored(make: Make) -> None:
    looked = make("bridge", ipMasq=True)
    looked.start(repair_containers=True)
    looked.add()
    looked.add("c2")
    assert looked.health() == ""

    def hand_over() -> list[Entry]:
        with open_nft() as netlink:
            log = logging.LoggerAdapter(logging.getLogger(__name__))
            node = Node(looked.scratch.folder / "run", looked.scratch.folder)
            found = way_back.entries(Masquerade(netlink), node)
            way_back.apply([one for one in found if "c1" in one.element.label], netlink, lambda _: None, log)
            return way_back.entries(Masquerade(netlink), node)

    assert len(looked.scratch.on_host(hand_over)) == 1
    for _ in range(2):
        assert looked.health() == ""
    assert looked.restored() == []
    assert "c1" not in run(looked.scratch.host_netns, "nft list ruleset")
    assert looked.plugin._level.containers.labels() == {Attachment("net", "c2", "eth0").label}
