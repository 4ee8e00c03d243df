"""dhcp that is killed before any step of an ADD or DEL: what a server was asked for is given back, or is still held."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.node.dhcp.lab import Place, Server, granting, serving
from tests.node.dhcp.test_faults import NETWORK, records
from tests.node.killed import ID, every_step, make

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug.testing.waiting import until
from nodeplug_net.dhcp import message as dhcp

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


@pytest.mark.parametrize("with_namespace", [True, False])
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
    assert seen == {dhcp.DISCOVER, dhcp.REQUEST}
    assert records(scratch) == []


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
