"""A daemon that is killed before any step of a DEL or GC of interfaces in containers: another one ends the rest.

So does the DEL that the daemon composes when the namespace is gone, and GC what it can reach. ADD: `test_made_links`.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.killed import ID, every_step, make

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni

Look = Callable[[Netns], Any]
KEYS: dict[str, dict[str, Any]] = {
    "dummy": {},
    "ipvlan": {"master": "up0"},
    "macvlan": {"master": "up0"},
    "tap": {},
    "vlan": {"master": "up0", "vlanId": 5},
}
TUN = pytest.mark.skipif(not Path("/dev/net/tun").exists(), reason="needs /dev/net/tun")
CASES = [
    pytest.param(kind, ending, marks=TUN if kind == "tap" else pytest.mark.link_kind(kind))
    for kind in KEYS
    for ending in ("del", "none", "gc")
    if kind != "vlan"
    or ending == "del"  # an interface carries a VLAN once, also while its container is being destroyed
]


KINDS = [pytest.param(kind, marks=TUN if kind == "tap" else pytest.mark.link_kind(kind)) for kind in KEYS]


@pytest.fixture
def network(scratch: ScratchCni, eyes: Any) -> Callable[..., dict[str, Any]]:
    """Make the configuration of a network of some kind, whose lower interface is there."""

    def wire(route: Any) -> None:
        route.link("add", ifname="up0", kind="veth", peer="up1")
        for name in ("up0", "up1"):
            route.link("set", index=route.link_lookup(ifname=name)[0], state="up")

    eyes.change(scratch.host_netns, wire)
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}
    return lambda kind, **keys: {
        "cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": ipam, **KEYS[kind], **keys,
    }  # fmt: skip


def next_daemon(scratch: ScratchCni, kind: str) -> Any:
    plugin = make(kind, scratch.folder, scratch.host)
    scratch.on_host(plugin.start)
    return plugin


@pytest.mark.parametrize(("kind", "ending"), CASES)
def test_a_del_that_was_killed_is_ended(
    scratch: ScratchCni, eyes: Any, look: Look, network: Callable[..., dict[str, Any]], kind: str, ending: str
) -> None:
    config, pods = network(kind), [scratch.container()]

    def prepare() -> None:
        scratch.add(next_daemon(scratch, kind), config, ID, pods[0])
        assert len(eyes.held()) == 1

    for _ in every_step(scratch, lambda: pods[0], kind, "del", least=3, prepare=prepare, config=config):
        if ending != "del":
            pods[0] = scratch.container()
        if ending == "gc":
            scratch.gc(next_daemon(scratch, kind), config, [])
        else:
            scratch.delete(next_daemon(scratch, kind), config, ID, pods[0] if ending == "del" else None)
        assert (look(pods[0]).links, eyes.held()) == ({"lo"}, [])
    assert (look(pods[0]).links, eyes.held()) == ({"lo"}, [])


@pytest.mark.parametrize("kind", KINDS)
def test_a_gc_that_was_killed_is_ended_and_takes_nothing_of_others(
    scratch: ScratchCni, eyes: Any, look: Look, network: Callable[..., dict[str, Any]], kind: str
) -> None:
    """It frees the address; the interface ends with its namespace, or by a late DEL."""
    config, pod, other = network(kind), scratch.container(), scratch.container()
    theirs = network(kind, vlanId=6) if kind == "vlan" else config
    kept = scratch.add(next_daemon(scratch, kind), theirs, "c9", other)
    held = eyes.held()

    def prepare() -> None:
        scratch.add(next_daemon(scratch, kind), config, ID, pod)
        assert len(eyes.held()) == 2

    call: dict[str, Any] = {"config": config, "valid": [("c9", "eth0")], "prepare": prepare}
    for _ in every_step(scratch, lambda: pod, kind, "gc", least=1, **call):
        scratch.gc(next_daemon(scratch, kind), config, [("c9", "eth0")])
        assert eyes.held() == held
        scratch.delete(next_daemon(scratch, kind), config, ID, pod)
        assert look(pod).links == {"lo"}
    scratch.check(next_daemon(scratch, kind), theirs, "c9", other, kept)
