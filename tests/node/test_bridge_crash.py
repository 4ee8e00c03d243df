"""The bridge after a killed daemon, and under many calls at once."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.attachment import Attachment
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.netlink.reaper import LIMIT

Make = Callable[..., dict[str, Any]]
Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]


def half_an_add(scratch: ScratchCni, netns: Netns) -> None:
    """The pair that a daemon leaves when it is killed right after creating it."""

    def create() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only these tests need half an ADD

        with IPRoute() as route:
            name = Attachment("net", "c1", "eth0").host_veth
            master = route.link_lookup(ifname="br0")[0]
            route.link("add", ifname=name, kind="veth", master=master, peer={"ifname": "eth0", "net_ns_fd": netns.fd})

    scratch.on_host(create)


def test_del_removes_the_unlabelled_pair_of_a_killed_add(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c0", scratch.container())
    half_an_add(scratch, netns)
    scratch.delete(bridge, config(), "c1", None)
    assert look(netns).links == {"lo"}


def test_add_completes_the_pair_of_a_killed_add(scratch: ScratchCni, bridge: Bridge, config: Make, ping: Ping) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c0", scratch.container())
    half_an_add(scratch, netns)
    result = scratch.add(bridge, config(), "c1", netns)
    scratch.check(bridge, config(), "c1", netns, result)
    assert ping(netns, "10.88.0.1")


def test_del_answers_when_the_link_is_gone_and_not_before(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    scratch.add(bridge, config(), "c1", netns)
    release, answered = threading.Event(), threading.Event()
    for _ in range(LIMIT):  # every reaper is busy
        bridge._plane.reaper.later(lambda: (release.wait(), None)[1])

    def delete() -> None:
        scratch.delete(bridge, config(), "c1", netns)
        answered.set()

    thread = threading.Thread(target=delete)
    thread.start()
    assert not answered.wait(0.2)
    assert "eth0" in look(netns).links
    release.set()
    thread.join()
    assert look(netns).links == {"lo"}


@pytest.mark.whole
def test_many_containers_at_once_neither_collide_nor_leave_anything(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    network = config(ipMasq=True)
    failures: list[BaseException] = []

    def live(index: int, netns: Netns) -> None:
        try:
            for turn in range(4):
                name = f"c{index}-{turn}"
                result = scratch.add(bridge, network, name, netns)
                scratch.check(bridge, network, name, netns, result)
                scratch.delete(bridge, network, name, netns)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=live, args=(index, scratch.container())) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert look(scratch.host_netns).links == {"lo", "br0"}
    folder = scratch.folder / "networks" / "net"
    assert [path.name for path in folder.iterdir() if path.name != "lock" and "last" not in path.name] == []


def test_the_same_names_come_back_at_once_after_del(
    scratch: ScratchCni, bridge: Bridge, config: Make, look: Look
) -> None:
    netns = scratch.container()
    for _ in range(20):
        scratch.add(bridge, config(), "c1", netns)
        scratch.delete(bridge, config(), "c1", netns)
    assert look(netns).links == {"lo"}
