"""dhcp that is killed before any step of an ADD, DEL or GC: what was asked for is given back, or is still held."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.node.dhcp.lab import FIRST, Place, Server, granting, serving
from tests.node.dhcp.test_faults import NETWORK, records
from tests.node.killed import ID, every_step, make

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug.testing.waiting import until
from nodeplug_net.dhcp import message as dhcp
from nodeplug_net.dhcp.message import Message
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

Pod = Callable[[], Netns]


def next_daemon(scratch: ScratchCni, netns: Netns | None) -> None:
    """Another daemon starts, and gets the DEL."""
    plugin = make("dhcp", scratch.folder, scratch.host)
    scratch.on_host(plugin.start)
    scratch.delete(plugin, NETWORK, ID, netns)
    plugin.stop()


def is_settled(server: Server) -> bool:
    """Whether a server that granted something got it back."""
    kinds = server.kinds()
    return dhcp.REQUEST not in kinds or dhcp.RELEASE in kinds[kinds.index(dhcp.REQUEST) :]


@pytest.mark.parametrize("with_namespace", [True, pytest.param(False, marks=pytest.mark.whole)])
def test_nothing_is_left_of_an_add_that_was_killed(
    scratch: ScratchCni, place: Place, pod: Pod, with_namespace: bool
) -> None:
    netns, seen = pod(), set()
    with serving(place, granting()) as server:
        for _ in every_step(scratch, lambda: netns, "dhcp", "add", least=7, config=NETWORK):
            seen.update(server.kinds())
            next_daemon(scratch, netns if with_namespace else None)
            assert records(scratch) == []
            until(lambda: is_settled(server))
            server.heard.clear()
        next_daemon(scratch, netns)
        until(lambda: is_settled(server))
    assert {dhcp.DISCOVER, dhcp.REQUEST} <= seen
    assert records(scratch) == []


@pytest.mark.whole
def test_nothing_is_left_of_a_del_that_was_killed(scratch: ScratchCni, place: Place, pod: Pod) -> None:
    netns = pod()

    def prepare() -> None:
        plugin: Any = make("dhcp", scratch.folder, scratch.host)
        scratch.on_host(plugin.start)
        scratch.add(plugin, NETWORK, ID, netns)
        plugin.stop()
        server.heard.clear()

    with serving(place, granting()) as server:
        steps = every_step(scratch, lambda: netns, "dhcp", "del", least=2, prepare=prepare, config=NETWORK)
        for _ in steps:
            next_daemon(scratch, netns)
            assert records(scratch) == []
            until(lambda: dhcp.RELEASE in server.kinds())
    assert records(scratch) == []


@pytest.mark.whole
def test_a_gc_that_was_killed_gives_back_what_is_not_valid_and_nothing_else(
    scratch: ScratchCni, place: Place, pod: Pod
) -> None:
    netns, other = pod(), pod()

    def called(call: Callable[[Any], object]) -> None:
        plugin = make("dhcp", scratch.folder, scratch.host)
        scratch.on_host(plugin.start)
        call(plugin)
        plugin.stop()

    def prepare() -> None:
        called(lambda plugin: scratch.add(plugin, NETWORK, ID, netns))
        server.heard.clear()

    def released() -> list[bytes]:
        return [one.chaddr for one in server.heard if one.type == dhcp.RELEASE]

    with serving(place, each_its_own) as server:
        called(lambda plugin: scratch.add(plugin, NETWORK, "c9", other))
        theirs = records(scratch)
        call: dict[str, Any] = {"config": NETWORK, "valid": [("c9", "eth0")], "prepare": prepare}
        for _ in every_step(scratch, lambda: netns, "dhcp", "gc", least=2, **call):
            called(lambda plugin: scratch.gc(plugin, NETWORK, [("c9", "eth0")]))
            assert records(scratch) == theirs
            until(lambda: released() != [])
            assert set(released()) == {hardware_address(netns)}


def each_its_own(server: Server, request: Message) -> Message | bytes | None:
    """Grant each client another address."""
    clients = list(dict.fromkeys(one.chaddr for one in server.heard))
    return granting(yiaddr=FIRST + clients.index(request.chaddr))(server, request)


def hardware_address(netns: Netns) -> bytes:
    def look() -> bytes:
        with Netlink() as netlink:
            link = Links(netlink).get("eth0")
        assert link is not None
        return bytes.fromhex(link.mac.replace(":", ""))

    return run_in(netns, look)
