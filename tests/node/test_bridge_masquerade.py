import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_interface
from typing import Any

import pytest
from tests.node.outside import HOST, NEIGHBOUR
from tests.programs import need

from nodeplug import CniStatus, Netns, PluginError
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.connection import KernelReply, Netlink, Request
from nodeplug_net.netlink.links import Links
from nodeplug_net.netlink.messages import delete_link, u32
from nodeplug_net.nftables import masquerade_messages as nft
from nodeplug_net.nftables.encoding import begin, end
from nodeplug_net.nftables.masquerade import Element, Masquerade

Make = Callable[..., dict[str, Any]]
NETFILTER = 12


@pytest.fixture
def server(outside: Netns) -> Iterator[Callable[[int], list[str]]]:
    """Answer every datagram on port 9 outside; the fixture gives the senders seen, by IP version."""
    senders: dict[int, list[str]] = {4: [], 6: []}
    stopping = threading.Event()

    def serve(version: int, listener: socket.socket) -> None:
        while not stopping.is_set():
            try:
                _, sender = listener.recvfrom(100)
            except TimeoutError:
                continue
            senders[version].append(sender[0])
            listener.sendto(b"pong", sender)

    def listen(family: socket.AddressFamily, address: str) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_DGRAM)
        listener.settimeout(0.05)
        listener.bind((address, 9))
        return listener

    listeners = {
        4: run_in(outside, lambda: listen(socket.AF_INET, NEIGHBOUR[4])),
        6: run_in(outside, lambda: listen(socket.AF_INET6, NEIGHBOUR[6])),
    }
    threads = [threading.Thread(target=serve, args=pair) for pair in listeners.items()]
    for thread in threads:
        thread.start()
    yield lambda version: senders[version]
    stopping.set()
    for thread in threads:
        thread.join()
    for listener in listeners.values():
        listener.close()


def exchange(client: socket.socket, there: tuple[str, int], answers: socket.socket) -> tuple[bytes, str]:
    """Send a datagram again and again until one comes to a socket: IPv6 needs seconds for its first neighbours."""
    answers.settimeout(0.5)
    for _ in range(60):
        client.sendto(b"ping", there)
        with suppress(TimeoutError):
            data, sender = answers.recvfrom(100)
            return data, sender[0]
    raise AssertionError(f"no datagram to {there} has arrived")


def ask(netns: Netns, version: int) -> bytes:
    """Send datagrams to the server outside until it answers."""
    there = (NEIGHBOUR[version], 9)
    with run_in(netns, lambda: datagram(version)) as client:
        return exchange(client, there, client)[0]


def sender_seen(netns: Netns, outside: Netns, address: str) -> str:
    """Send datagrams to a socket in another namespace; the address from which they come there."""
    version = 6 if ":" in address else 4
    with run_in(outside, lambda: datagram(version)) as listener, run_in(netns, lambda: datagram(version)) as client:
        listener.bind((address, 9))
        return exchange(client, (address, 9), listener)[1]


def datagram(version: int) -> socket.socket:
    return socket.socket(socket.AF_INET if version == 4 else socket.AF_INET6, socket.SOCK_DGRAM)


def entries(scratch: ScratchCni) -> set[tuple[str, str]]:
    def read() -> set[tuple[str, str]]:
        with Netlink(NETFILTER) as netlink:
            return {(str(entry.address), entry.label) for entry in Masquerade(netlink).entries("")}

    return scratch.on_host(read)


@pytest.mark.parametrize("version", [4, 6])
def test_a_packet_leaves_the_subnet_with_the_hosts_address(
    scratch: ScratchCni, bridge: Bridge, config: Make, server: Callable[[int], list[str]], version: int
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(ipMasq=True), "c1", netns)
    assert ask(netns, version) == b"pong"
    assert set(server(version)) == {HOST[version]}


def test_without_ip_masq_a_packet_keeps_its_address(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    assert sender_seen(netns, outside, "192.0.2.2") == "10.88.0.2"


def test_inside_the_subnet_a_packet_keeps_its_address(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    one, other = scratch.container(), scratch.container()
    scratch.add(bridge, config(ipMasq=True), "c1", one)
    scratch.add(bridge, config(ipMasq=True), "c2", other)
    assert sender_seen(one, other, "10.88.0.3") == "10.88.0.2"


def test_entries_carry_their_attachment_and_go_with_it(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    scratch.add(bridge, config(ipMasq=True), "c1", scratch.container())
    scratch.add(bridge, config(ipMasq=True), "c2", scratch.container())
    label = "nodeplug net {} eth0"
    second = {("10.88.0.3", label.format("c2")), ("fd00:88::3", label.format("c2"))}
    assert entries(scratch) == {("10.88.0.2", label.format("c1")), ("fd00:88::2", label.format("c1"))} | second
    scratch.delete(bridge, config(ipMasq=True), "c1", None)
    assert entries(scratch) == second


def test_del_removes_entries_although_the_network_no_longer_masquerades(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config(ipMasq=True), "c1", scratch.container())
    scratch.delete(bridge, config(ipMasq=False), "c1", None)
    assert entries(scratch) == set()


def test_a_late_del_keeps_the_entry_of_the_next_holder_of_the_address(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    network = config("10.88.0.0/24", ipMasq=True)
    scratch.add(bridge, network, "a", scratch.container(), args={"IP": "10.88.0.50"})
    (scratch.folder / "networks" / "net" / "10.88.0.50").unlink()
    scratch.add(bridge, network, "b", scratch.container(), args={"IP": "10.88.0.50"})
    scratch.delete(bridge, network, "a", None)
    assert entries(scratch) == {("10.88.0.50", "nodeplug net b eth0")}
    assert (scratch.folder / "networks" / "net" / "10.88.0.50").exists()


def test_parallel_first_adds_build_the_table_once(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    containers = [scratch.container() for _ in range(8)]
    failures: list[BaseException] = []

    def add(index: int) -> None:
        try:
            scratch.add(bridge, config(ipMasq=True), f"c{index}", containers[index])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=add, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert len(entries(scratch)) == 16


class Overtaken(Netlink):
    """A socket on which the beginning of a list is removed when its first part has been read."""

    def __init__(self) -> None:
        super().__init__(NETFILTER)
        self.victims: list[Element] = []
        self.parts = 0

    def _receive(self, answers: list[KernelReply], first: int) -> None:
        super()._receive(answers, first)
        self.parts += any(len(answer.messages) > 0 and not answer.complete for answer in answers)
        if self.victims and self.parts == 2:  # the first was the list of sets
            victims, self.victims = self.victims, []
            with Netlink(NETFILTER) as other:
                Masquerade(other).remove(victims)


def test_a_list_that_changes_while_it_is_read_is_complete(scratch: ScratchCni) -> None:
    labels = [f"nodeplug net {'c' * 60}{number:04d} eth0" for number in range(600)]

    def read() -> tuple[list[str], list[str]]:
        with Overtaken() as netlink:
            masquerade = Masquerade(netlink)
            for number, label in enumerate(labels):
                masquerade.add([ip_interface(f"10.88.{number // 250}.{number % 250 + 1}/16")], label)
            before = masquerade.entries("")
            netlink.parts, netlink.victims = 0, before[:60]
            after = masquerade.entries("")
            assert netlink.victims == []
        return sorted(entry.label for entry in before[60:]), sorted(entry.label for entry in after)

    expected, found = scratch.on_host(read)
    assert found == expected


def test_many_entries_go_at_once(scratch: ScratchCni) -> None:
    def fill_and_empty() -> list[Element]:
        with Netlink(NETFILTER) as netlink:
            masquerade = Masquerade(netlink)
            for number in range(600):
                label = f"nodeplug net c{number} eth0"
                masquerade.add([ip_interface(f"10.88.{number // 250}.{number % 250 + 1}/16")], label)
            masquerade.remove(masquerade.entries(""))
            return masquerade.entries("")

    assert scratch.on_host(fill_and_empty) == []


class WithoutTables(Netlink):
    """A socket whose messages go to a subsystem of nfnetlink that no kernel has, as those of a lean kernel do."""

    def __init__(self) -> None:
        super().__init__(NETFILTER)

    def exchange(self, messages: Sequence[tuple[bytearray, bool]]) -> list[KernelReply]:
        for data, _ in messages:
            data[5] = 0x7F
        return super().exchange(messages)


def test_a_kernel_without_tables_has_nothing_for_del_to_remove(scratch: ScratchCni) -> None:
    def look() -> list[Element]:
        with WithoutTables() as netlink:
            return Masquerade(netlink).owned("nodeplug net c1 eth0")

    assert scratch.on_host(look) == []


def test_status_does_not_need_the_table(scratch: ScratchCni, bridge: Bridge, config: Make) -> None:
    request = scratch.request(CniStatus, config(ipMasq=True))
    scratch.on_host(lambda: bridge.cni_status(request=request))


def test_what_somebody_else_ended_is_not_masqueraded_after_the_next_start(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    """The reference's plugins delete the interface and do not know our table."""
    netns, other = scratch.container(), scratch.container()
    for container, where in (("c1", netns), ("c2", other)):
        scratch.add(bridge, config(ipMasq=True), container, where)

    def end() -> None:
        with Netlink() as netlink:
            links = Links(netlink)
            link = links.get("eth0")
            assert link is not None
            netlink.ask(Request(delete_link().fill(index=u32(link.index)), "delete eth0"))

    run_in(netns, end)
    scratch.on_host(bridge.start)

    def labels() -> set[str]:
        with Netlink(NETFILTER) as netlink:
            return {entry.label.split()[2] for entry in Masquerade(netlink).entries("nodeplug ")}

    assert scratch.on_host(labels) == {"c2"}


def test_what_changes_while_it_is_looked_at_is_looked_at_again(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.add(bridge, config(ipMasq=True), "c1", scratch.container())
    seen: list[list[str]] = []

    def discard() -> list[str]:
        with Netlink(NETFILTER) as netlink, Netlink(NETFILTER) as another:
            masquerade = Masquerade(netlink)

            def all_but_new(entries: list[Element]) -> list[Element]:
                seen.append(sorted(str(one.address) for one in entries))
                if len(seen) == 1:  # a new container gets the address meanwhile
                    Masquerade(another).add([ip_interface("10.88.0.2/24")], "nodeplug net c2 eth0")
                return [one for one in entries if "c1" in one.label]

            masquerade.discard(all_but_new)
            return [one.label for one in masquerade.entries("nodeplug ") if str(one.address) == "10.88.0.2"]

    assert scratch.on_host(discard) == ["nodeplug net c2 eth0"]
    assert len(seen) > 1


@pytest.mark.parametrize(
    ("keys", "masqueraded"),
    [
        ({"ipMasq": True, "ip6Masq": False}, {"10.88.0.2"}),
        ({"ipMasq": False, "ip6Masq": True}, {"fd00:88::2"}),
        ({"ip6Masq": True}, {"fd00:88::2"}),
        ({"ipMasq": True, "ip6Masq": True}, {"10.88.0.2", "fd00:88::2"}),
        ({"ipMasq": True, "ip6Masq": None}, {"10.88.0.2", "fd00:88::2"}),
        ({"ip6Masq": False}, set()),
    ],
)
def test_each_version_of_ip_is_masqueraded_where_it_is_asked_for(
    scratch: ScratchCni, bridge: Bridge, config: Make, keys: dict[str, Any], masqueraded: set[str]
) -> None:
    """Every verb knows it: none misses the other version's rules, and a repair makes none."""
    scratch.on_host(bridge.start)  # its home is that host
    netns, network = scratch.container(), config(cniVersion="1.1.0", **keys)
    result = scratch.add(bridge, network, "c1", netns)
    assert {address for address, _ in entries(scratch)} == masqueraded

    def flush() -> None:
        with Netlink(NETFILTER) as netlink:
            if masqueraded:
                netlink.exchange([(begin(), False), (nft.delete_table(), True), (end(), False)])

    scratch.on_host(bridge.health)
    scratch.check(bridge, network, "c1", netns, result)
    scratch.on_host(flush)
    if masqueraded:
        with pytest.raises(PluginError, match="is not masqueraded"):
            scratch.check(bridge, network, "c1", netns, result)
    scratch.status(bridge, network)
    scratch.check(bridge, network, "c1", netns, result)
    assert {address for address, _ in entries(scratch)} == masqueraded


@pytest.mark.parametrize(("version", "sender"), [(4, "192.0.2.1"), (6, "fd00:88::2")])
def test_a_packet_of_the_other_version_keeps_its_address(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns, version: int, sender: str
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(ipMasq=True, ip6Masq=False), "c1", netns)
    there = NEIGHBOUR[version]
    assert sender_seen(netns, outside, there) == sender


@pytest.mark.parametrize(
    ("keys", "sender"),
    [
        ({"ipMasq": True}, "10.88.0.2"),
        ({"ipMasq": True, "ipMasqSameSubnet": True}, "192.0.2.1"),
        ({"ipMasq": False, "ipMasqSameSubnet": True}, "10.88.0.2"),
    ],
    ids=["outside-alone", "same-subnet", "nothing"],
)
def test_what_the_host_routes_within_the_subnet_is_masqueraded_where_that_is_asked_for(
    scratch: ScratchCni, bridge: Bridge, config: Make, outside: Netns, keys: dict[str, Any], sender: str
) -> None:
    """A neighbour outside of the bridge has an address of the subnet, as in a network that a host shares with pods."""
    netns = scratch.container()
    scratch.add(bridge, config("10.88.0.0/24", **keys), "c1", netns)

    need("ip")

    def run(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    run_in(outside, lambda: run("addr", "add", "10.88.0.200/32", "dev", "down0"))
    scratch.on_host(lambda: run("route", "add", "10.88.0.200/32", "dev", "up0"))
    run_in(netns, lambda: run("route", "add", "10.88.0.200/32", "via", "10.88.0.1"))
    assert sender_seen(netns, outside, "10.88.0.200") == sender


@pytest.mark.programs("nft")
def test_masquerading_within_the_subnet_is_checked_restored_and_ended(
    scratch: ScratchCni, bridge: Bridge, config: Make
) -> None:
    scratch.on_host(bridge.start)  # its home is that host
    netns, network = scratch.container(), config(cniVersion="1.1.0", ipMasq=True, ipMasqSameSubnet=True)
    scratch.add(bridge, config(ipMasq=True, name="other", bridge="br1"), "c2", scratch.container())
    others = entries(scratch)
    result = scratch.add(bridge, network, "c1", netns)
    mine = entries(scratch) - others
    assert {label for _, label in mine} == {"nodeplug net c1 eth0"}
    scratch.on_host(bridge.health)
    scratch.check(bridge, network, "c1", netns, result)
    scratch.on_host(lambda: subprocess.run(["nft", "flush", "ruleset"], check=True))
    with pytest.raises(PluginError, match=r"address 10\.88\.0\.2 is not masqueraded"):
        scratch.check(bridge, network, "c1", netns, result)
    scratch.on_host(bridge.health)
    scratch.check(bridge, network, "c1", netns, result)
    scratch.on_host(lambda: subprocess.run(["nft", "flush", "ruleset"], check=True))
    scratch.status(bridge, network)
    scratch.check(bridge, network, "c1", netns, result)
    scratch.delete(bridge, network, "c1")
    assert not entries(scratch) & mine
