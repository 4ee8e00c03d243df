"""What is removed from a node is noticed when it happens, and restored: bridge, ports, gateway, rules, forwarding."""

import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.node.level.health_threads import HealthThreads
from tests.programs import need

from nodeplug import CniResult, LimitedConnectivity, Netns, NotReady
from nodeplug.testing import host
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.level import events, reconciler
from nodeplug_net.sysctl import get_sysctl

Make = Callable[..., dict[str, Any]]


@dataclass
class Node:
    """A host whose daemon asks for health whenever the plugin wants it to."""

    scratch: ScratchCni
    network: dict[str, Any]
    repair: bool = True
    plugin: Bridge = field(init=False)
    told: list[str] = field(default_factory=list)
    looks: int = 0
    asking: HealthThreads = field(init=False)

    def __post_init__(self) -> None:
        self.asking = HealthThreads(self.health)

    def start(self) -> None:
        given = host(self.scratch.folder, attachments=self.scratch.attachments, refresh_health=self._asked)
        config = BridgeConfig(data_dir=self.scratch.folder / "networks", repair=self.repair)
        self.plugin = Bridge(config, given)
        self.scratch.on_host(self.plugin.start)

    def _asked(self) -> None:
        self.looks += 1
        self.asking()

    def stop(self) -> None:
        """End it, and wait for whoever still asks: the namespaces are closed then."""
        self.plugin.stop()
        self.asking.end()

    def health(self) -> str:
        """Ask for health as the daemon does; return what is wrong."""
        try:
            run_in(self.scratch.host_netns, self.plugin.health)
            self.told.append("")
        except NotReady as error:
            self.told.append(str(error))
        return self.told[-1]

    def run(self, *words: str) -> str:
        """Do something on the host as an administrator does."""
        need(words[0])
        return self.scratch.on_host(lambda: subprocess.run(words, check=True, capture_output=True, text=True).stdout)

    def add(self, container: str = "c1") -> tuple[Netns, CniResult]:
        netns = self.scratch.container()
        return netns, self.scratch.add(self.plugin, self.network, container, netns)

    def checks(self, netns: Netns, result: CniResult) -> bool:
        """Whether CHECK finds the attachment as ADD made it."""
        try:
            self.scratch.check(self.plugin, self.network, "c1", netns, result)
        except Exception:
            return False
        return self.scratch.on_host(lambda: get_sysctl("ipv4/ip_forward")) == "1"


@pytest.fixture
def node(scratch: ScratchCni, config: Make) -> Iterator[Node]:
    made = Node(scratch, config(ipMasq=True, macspoofchk=True, portIsolation=True, cniVersion="1.1.0"))
    yield made
    made.stop()


def restored(node: Node) -> bool:
    """Whether something was restored, and is counted."""
    return any(one.value for one in node.plugin.metrics()[1].samples)


DAMAGE = {
    "the bridge is deleted": ["ip link del br0"],
    "the bridge is down": ["ip link set br0 down"],
    "the gateway's address is removed": ["ip address del 10.88.0.1/24 dev br0"],
    "all addresses are removed": ["ip address flush dev br0"],
    "a port leaves the bridge": ["ip link set PORT nomaster"],
    "a port is down": ["ip link set PORT down"],
    "the ruleset is flushed": ["nft flush ruleset"],
    "the table is deleted": ["nft delete table inet nodeplug_masquerade"],
    "the rules are flushed": ["nft flush table inet nodeplug_masquerade"],
    "addresses are masqueraded no more": ["nft flush set inet nodeplug_masquerade net_10.88.0.0/24"],
    "the checks of MACs are flushed": ["nft flush chain bridge nat PREROUTING"],
    "a check of a MAC is flushed": ["nft flush chain bridge nat cni-br-iface-c1-eth0-mac"],
    "the table of checks is deleted": ["nft delete table bridge nat"],
    "the route to containers is deleted": ["ip route del 10.88.0.0/24 dev br0"],
    "the route to containers of IPv6 is deleted": ["ip -6 route del fd00:88::/64 dev br0"],
    "a port sends frames back": ["ip link set PORT type bridge_slave hairpin on"],
    "a port sends frames back, as bridge sets it": ["bridge link set dev PORT hairpin on"],
    "a port is isolated no more": ["bridge link set dev PORT isolated off"],
    "forwarding is off": ["sysctl -w net.ipv4.ip_forward=0"],
    "everything": ["ip link del br0", "nft flush ruleset", "sysctl -w net.ipv4.ip_forward=0"],
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_what_is_removed_is_restored_when_the_kernel_tells_of_it(
    node: Node, damage: list[str], ping: Callable[[Netns, str], bool]
) -> None:
    node.start()
    netns, result = node.add()
    until(lambda: node.told == [""])  # who has looked knows the bridge
    for command in damage:
        node.run(*command.replace("PORT", result.interfaces[1].name).split())
    until(lambda: restored(node) and node.told[-1] == "", found=lambda: str(node.told))
    until(lambda: node.checks(netns, result), found=lambda: str(node.told))
    assert ping(netns, "10.88.0.1")


@pytest.mark.parametrize(
    "command", ["ip link set PORT type bridge_slave hairpin on", "bridge link set dev PORT isolated on"]
)
def test_a_port_of_a_network_without_flags_loses_those_that_it_gets(
    scratch: ScratchCni, config: Make, command: str
) -> None:
    node = Node(scratch, config())
    node.start()
    try:
        netns, result = node.add()
        until(lambda: node.told == [""])
        node.run(*command.replace("PORT", result.interfaces[1].name).split())
        until(lambda: restored(node), found=lambda: str(node.told))
        assert node.checks(netns, result)
    finally:
        node.stop()


def test_a_bridge_made_anew_has_the_address_that_containers_know(node: Node) -> None:
    node.start()
    netns, result = node.add()
    until(lambda: node.told == [""])
    node.run("ip", "link", "del", "br0")
    until(lambda: restored(node), found=lambda: str(node.told))
    assert node.checks(netns, result)
    assert result.interfaces[0].mac in node.run("ip", "link", "show", "br0")


def test_a_restarted_daemon_restores_what_was_removed_meanwhile(node: Node) -> None:
    node.start()
    netns, result = node.add()
    node.plugin.stop()
    for command in DAMAGE["everything"]:
        node.run(*command.split())
    node.start()
    assert node.health() == ""
    assert node.checks(netns, result)


def test_without_repair_it_is_told_at_once_and_left_as_it_is(node: Node) -> None:
    node.repair = False
    node.start()
    netns, result = node.add()
    until(lambda: node.told == [""])
    node.run("ip", "link", "del", "br0")
    until(lambda: "bridge br0 of network net is gone" in node.told[-1], found=lambda: str(node.told))
    assert not node.checks(netns, result)
    assert [one.value for one in node.plugin.metrics()[0].samples] == [1.0]
    node.scratch.status(node.plugin, node.network)  # the runtime asks
    assert node.checks(netns, result)


@pytest.mark.programs("ip")
def test_who_removes_it_again_and_again_is_left_alone_and_told_of(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciler, "FIRST_REST", 3600.0)
    monkeypatch.setattr(reconciler, "LONGEST_REST", 3600.0)
    node.start()
    netns, result = node.add()
    until(lambda: node.told == [""])
    ended = threading.Event()

    def other_manager() -> None:
        while not ended.is_set():
            with suppress(subprocess.CalledProcessError):
                node.run("ip", "address", "flush", "dev", "br0")
            ended.wait(0.02)

    manager = threading.Thread(target=other_manager)
    manager.start()
    try:
        until(lambda: "somebody else removes it again" in node.told[-1], found=lambda: str(node.told))
        restored = [one.value for one in node.plugin.metrics()[1].samples]
        with pytest.raises(LimitedConnectivity, match=r"bridge br0 lost 10\.88\.0\.1.*somebody else removes it again"):
            node.scratch.status(node.plugin, node.network)
    finally:
        ended.set()
        manager.join()
    assert "somebody else removes it again" in node.health()
    assert [one.value for one in node.plugin.metrics()[1].samples] == restored
    node.add("c2")  # who asks for a pod gets one, and with it what is needed
    assert node.checks(netns, result)
    assert node.health() == ""


def test_our_own_adds_and_dels_are_no_reason_to_look(node: Node) -> None:
    node.start()
    netns, result = node.add()
    until(lambda: node.told == [""])
    for number in range(10):
        container = node.scratch.container()
        node.scratch.add(node.plugin, node.network, f"d{number}", container)
        node.scratch.delete(node.plugin, node.network, f"d{number}", container)
    before = node.looks
    node.run("ip", "link", "set", "br0", "down")
    until(lambda: node.checks(netns, result), found=lambda: str(node.told))
    until(lambda: node.told[-1] == "")
    assert before <= 2  # the first of a network, and perhaps one DEL whose end came after the reading


def test_what_cannot_be_restored_is_told_with_the_reason(node: Node) -> None:
    node.start()
    node.add()
    until(lambda: node.told == [""])
    node.plugin.stop()  # which would be faster than an administrator
    node.run("ip", "link", "del", "br0")
    node.run("ip", "link", "add", "br0", "type", "veth", "peer", "name", "other")
    node.start()
    told = node.health()
    assert "bridge br0 of network net is gone" in told
    assert "cannot be restored: interface br0 is not a bridge; remove it or choose another name" in told
    assert node.plugin.metrics()[1].samples == []


def test_events_that_the_kernel_dropped_are_answered_by_a_look(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "ROOM", 1)  # the kernel makes a few hundred bytes of it
    node.start()
    netns, result = node.add()
    until(lambda: node.told[-1:] == [""])  # dropped events of the ADD lead to more looks
    burst = [f"link add v{number} type veth peer name w{number}" for number in range(20)]
    (node.scratch.folder / "batch").write_text("\n".join([*burst, "link set br0 down"]) + "\n")
    node.run("ip", "-batch", str(node.scratch.folder / "batch"))
    until(lambda: restored(node), found=lambda: str(node.told))
    assert node.checks(netns, result)


def test_a_second_gateway_does_not_prevent_the_first_from_coming_back(scratch: ScratchCni, config: Make) -> None:
    node = Node(scratch, config("10.88.0.0/24", "10.99.0.0/24"))
    node.start()
    try:
        netns, result = node.add()
        until(lambda: node.told == [""])
        node.run("ip", "address", "del", "10.88.0.1/24", "dev", "br0")
        until(lambda: restored(node), found=lambda: str(node.told))
        assert node.checks(netns, result)
    finally:
        node.stop()


def test_plugins_of_one_process_share_one_observer(node: Node, scratch: ScratchCni) -> None:
    def observers() -> int:
        return sum(one.name == "net:observer" for one in threading.enumerate())

    before = observers()
    node.start()
    second = Bridge(BridgeConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(second.start)
    assert observers() == before + 1
    second.stop()
    assert observers() == before + 1
    node.plugin.stop()
    assert observers() == before
    node.start()  # as the fixture stops it
