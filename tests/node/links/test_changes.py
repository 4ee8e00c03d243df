"""The wait for a change of the network, in namespaces of their own."""

import threading

import pytest

from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.netlink.changes import IPV6_ADDRESSES, LINKS, Changes
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links

FOR_EVER = 3600.0


@pytest.mark.parametrize("groups", [LINKS, LINKS | IPV6_ADDRESSES])
def test_a_wait_ends_with_the_kernels_word(scratch: ScratchCni, groups: int) -> None:
    netns = scratch.container()
    with run_in(netns, lambda: Changes(groups)) as changes:
        waiting = threading.Thread(target=changes.wait, args=(FOR_EVER,), daemon=True)
        waiting.start()
        run_in(netns, lo_up)
        waiting.join(60)
        assert not waiting.is_alive()


def test_what_came_before_the_wait_ends_it(scratch: ScratchCni) -> None:
    netns = scratch.container()
    with run_in(netns, lambda: Changes(LINKS)) as changes:
        run_in(netns, lo_up)
        changes.wait(FOR_EVER)


def test_a_wait_ends_without_a_word_when_its_time_is_over(scratch: ScratchCni) -> None:
    with run_in(scratch.container(), lambda: Changes(LINKS)) as changes:
        changes.wait(-1)
        changes.wait(0.01)


def lo_up() -> None:
    with Netlink() as netlink:
        links = Links(netlink)
        link = links.get("lo")
        assert link is not None
        links.set_up(link)
