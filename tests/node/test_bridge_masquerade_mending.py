"""Masquerading that an administrator took away: who sees it, who makes it again; and what goes when nobody uses it."""

import subprocess
import threading
from collections.abc import Callable, Sequence
from ipaddress import ip_network
from typing import Any

import pytest
from tests.programs import need

from nodeplug import Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bridge.plugin import Bridge, BridgeConfig
from nodeplug_net.netlink.connection import KernelReply, Netlink
from nodeplug_net.nftables import masquerade_messages as nft
from nodeplug_net.nftables.masquerade import Element, Masquerade

Make = Callable[..., dict[str, Any]]
NETFILTER = 12
FLUSHES = ["flush ruleset", f"flush table inet {nft.TABLE}", f"flush chain inet {nft.TABLE} {nft.CHAIN}"]


def run_nft(scratch: ScratchCni, *words: str) -> str:
    need("nft")
    command = ["nft", *words]
    done = scratch.on_host(lambda: subprocess.run(command, capture_output=True, text=True, check=True))
    return done.stdout


def elements(scratch: ScratchCni) -> set[tuple[str, str]]:
    def read() -> set[tuple[str, str]]:
        with Netlink(NETFILTER) as netlink:
            return {(str(entry.address), entry.label.split()[2]) for entry in Masquerade(netlink).entries("")}

    return scratch.on_host(read)


def rules(scratch: ScratchCni) -> list[str]:
    """The rules of the chain, in order."""
    text = run_nft(scratch, "list", "table", "inet", nft.TABLE)
    return [line.strip() for line in text.splitlines() if " masquerade" in line or line.endswith("return")]


WHOLE = [
    "ip daddr 224.0.0.0/4 return",
    "ip6 daddr ff00::/8 return",
    "ip saddr @net_10.88.0.0/24 ip daddr != 10.88.0.0/24 masquerade",
    "ip6 saddr @net_fd00_88__/64 ip6 daddr != fd00:88::/64 masquerade",
]
TWO = {("10.88.0.2", "c1"), ("fd00:88::2", "c1"), ("10.88.0.3", "c2"), ("fd00:88::3", "c2")}


@pytest.fixture
def network(config: Make) -> dict[str, Any]:
    return config(ipMasq=True)


@pytest.fixture
def running(scratch: ScratchCni, bridge: Bridge, network: dict[str, Any]) -> tuple[Netns, Any]:
    """A container c1 that runs."""
    netns = scratch.container()
    return netns, scratch.add(bridge, network, "c1", netns)


@pytest.mark.parametrize("flush", FLUSHES)
def test_the_next_add_masquerades_all_containers_again(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any], flush: str
) -> None:
    run_nft(scratch, *flush.split())
    scratch.add(bridge, network, "c2", scratch.container())
    assert (rules(scratch), elements(scratch)) == (WHOLE, TWO)
    scratch.check(bridge, network, "c1", *running)


@pytest.mark.parametrize("flush", FLUSHES)
def test_check_tells_what_is_missing(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any], flush: str
) -> None:
    run_nft(scratch, *flush.split())
    with pytest.raises(PluginError, match=r"subnet 10\.88\.0\.0/24 has no rule that masquerades it"):
        scratch.check(bridge, network, "c1", *running)


@pytest.mark.parametrize("flush", FLUSHES)
def test_status_masquerades_all_containers_again(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any], flush: str
) -> None:
    scratch.add(bridge, network, "c2", scratch.container())
    run_nft(scratch, *flush.split())
    scratch.status(bridge, network)
    assert (rules(scratch), elements(scratch)) == (WHOLE, TWO)


@pytest.mark.parametrize("flush", [*FLUSHES, f"flush set inet {nft.TABLE} net_10.88.0.0/24"])
def test_gc_masquerades_valid_containers_again(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any], flush: str
) -> None:
    scratch.add(bridge, network, "c2", scratch.container())
    run_nft(scratch, *flush.split())
    scratch.gc(bridge, network, [("c1", "eth0")])
    assert (rules(scratch), elements(scratch)) == (WHOLE, {one for one in TWO if one[1] == "c1"})


def test_a_container_that_is_gone_is_not_masqueraded_again(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    (scratch.folder / "networks" / "net" / "10.88.0.77").write_text("lost\r\neth0")
    run_nft(scratch, "flush", "ruleset")
    scratch.add(bridge, network, "c2", scratch.container())
    assert elements(scratch) == TWO


def test_a_mended_table_keeps_the_subnets_of_other_networks(
    scratch: ScratchCni, bridge: Bridge, config: Make, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    other = config("10.99.0.0/24", name="other", bridge="br1", ipMasq=True)
    scratch.add(bridge, other, "c9", scratch.container())
    run_nft(scratch, "flush", "table", "inet", nft.TABLE)
    scratch.add(bridge, network, "c2", scratch.container())
    assert "ip saddr @net_10.99.0.0/24 ip daddr != 10.99.0.0/24 masquerade" in rules(scratch)


def test_many_containers_are_masqueraded_again(scratch: ScratchCni, network: dict[str, Any]) -> None:
    from ipaddress import ip_interface  # noqa: PLC0415  this test alone

    need("nft")

    def mend() -> int:
        with Netlink(NETFILTER) as netlink:
            masquerade = Masquerade(netlink)
            for number in range(250):
                masquerade.add([ip_interface(f"10.88.0.{number + 2}/24")], f"nodeplug net c{number} eth0")
            expected = masquerade.entries("")
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            masquerade.mend(expected)
            return len(masquerade.entries(""))

    assert scratch.on_host(mend) == 250


def test_an_address_that_another_attachment_has_stays_its_when_mended(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    def claim() -> None:
        with Netlink(NETFILTER) as netlink:
            masquerade = Masquerade(netlink)
            mine = masquerade.entries("")
            masquerade.mend([type(one)(one.network, one.key, "nodeplug net other eth0") for one in mine])

    scratch.on_host(claim)
    assert elements(scratch) == {("10.88.0.2", "c1"), ("fd00:88::2", "c1")}


def test_gc_removes_the_subnets_that_nobody_uses(
    scratch: ScratchCni, bridge: Bridge, config: Make, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    other = config("10.99.0.0/24", name="other", bridge="br1", ipMasq=True)
    scratch.add(bridge, other, "c9", scratch.container())
    scratch.delete(bridge, other, "c9", None)
    scratch.gc(bridge, network, [("c1", "eth0")])
    assert rules(scratch) == WHOLE
    assert "10.99.0.0" not in run_nft(scratch, "list", "sets")


def test_gc_removes_the_table_when_nobody_is_masqueraded(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    scratch.gc(bridge, network, [])
    assert run_nft(scratch, "list", "ruleset") == ""


def test_a_start_removes_what_nobody_uses(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    scratch.delete(bridge, network, "c1", None)
    assert nft.TABLE in run_nft(scratch, "list", "ruleset")
    plugin = Bridge(BridgeConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(plugin.start)
    assert run_nft(scratch, "list", "ruleset") == ""


def test_an_add_after_the_removal_makes_everything_again(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    scratch.gc(bridge, network, [])
    scratch.add(bridge, network, "c2", scratch.container())
    assert rules(scratch) == WHOLE


def test_adds_beside_a_removal_lose_nothing(scratch: ScratchCni) -> None:
    from ipaddress import ip_interface  # noqa: PLC0415  this test alone

    stopping = threading.Event()
    failures: list[BaseException] = []

    def prune() -> None:
        with Netlink(NETFILTER) as netlink:
            while not stopping.is_set():
                Masquerade(netlink).prune()

    def add_and_look() -> None:
        try:
            with Netlink(NETFILTER) as netlink:
                masquerade = Masquerade(netlink)
                for number in range(200):
                    address, label = ip_interface(f"10.{number % 7}.0.2/24"), f"nodeplug net c{number} eth0"
                    masquerade.add([address], label)
                    mine = masquerade.owned(label)
                    assert [entry.address for entry in mine] == [address.ip]
                    assert masquerade.lacking([address.network]) == []
                    masquerade.remove(mine)
        except BaseException as error:
            failures.append(error)
        finally:
            stopping.set()

    threads = [threading.Thread(target=scratch.on_host, args=(job,)) for job in (prune, add_and_look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_mending_beside_a_removal_loses_nothing(scratch: ScratchCni) -> None:
    stopping = threading.Event()
    failures: list[BaseException] = []

    def prune() -> None:
        with Netlink(NETFILTER) as netlink:
            while not stopping.is_set():
                Masquerade(netlink).prune()

    def mend_and_look() -> None:
        try:
            with Netlink(NETFILTER) as netlink:
                masquerade = Masquerade(netlink)
                for number in range(300):
                    network = ip_network(f"10.{number % 7}.0.0/24")
                    wanted = Element(network, network[2].packed, f"nodeplug net c{number} eth0")
                    masquerade.mend([wanted])
                    assert masquerade.owned(wanted.label) == [wanted]
                    assert masquerade.lacking([network]) == []
                    masquerade.remove([wanted])
        except BaseException as error:
            failures.append(error)
        finally:
            stopping.set()

    threads = [threading.Thread(target=scratch.on_host, args=(job,)) for job in (prune, mend_and_look)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.whole
def test_hundreds_of_subnets_are_masqueraded_again_and_removed_again(scratch: ScratchCni) -> None:
    networks = [ip_network(f"10.{number // 256}.{number % 256}.0/24") for number in range(400)]
    wanted = [Element(network, network[2].packed, "nodeplug net c eth0") for network in networks]

    def mend_and_prune() -> tuple[list[Any], int, int]:
        with Netlink(NETFILTER) as netlink:
            masquerade = Masquerade(netlink)
            masquerade.mend(wanted)
            made = masquerade.lacking(networks), len(masquerade.entries(""))
            masquerade.remove(wanted[1:])
            masquerade.prune()
            return *made, len(masquerade.lacking(networks))

    assert scratch.on_host(mend_and_prune) == ([], 400, 399)


class Dying(Netlink):
    """A socket of a daemon that is killed right after its first transaction."""

    def exchange(self, messages: Sequence[tuple[bytearray, bool]]) -> list[KernelReply]:
        answers = super().exchange(messages)
        if not messages[0][1]:
            raise SystemExit
        return answers


def test_a_daemon_killed_while_it_mends_leaves_no_rules_without_addresses(
    scratch: ScratchCni, bridge: Bridge, network: dict[str, Any], running: tuple[Netns, Any]
) -> None:
    need("nft")

    def die() -> None:
        with Dying(NETFILTER) as netlink:
            masquerade = Masquerade(netlink)
            expected = masquerade.entries("")
            subprocess.run(["nft", "flush", "ruleset"], check=True)
            with pytest.raises(SystemExit):
                masquerade.mend(expected)

    scratch.on_host(die)
    scratch.add(bridge, network, "c2", scratch.container())
    assert (sorted(rules(scratch)), elements(scratch)) == (sorted(WHOLE), TWO)
