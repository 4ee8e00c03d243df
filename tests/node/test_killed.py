"""A daemon that is killed before any step of a call of bridge, ptp or host-local: nothing leaks, nothing is lost.

Afterwards another daemon starts, and a DEL comes, or none does: then the container's namespace ends, and the daemon
composes the DEL by itself, without namespace and result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.node.killed import ID, every_step, make

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, new_netns, run_in
from nodeplug_net.attachment import Attachment
from nodeplug_net.ipam.store import parse_address
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Links
from nodeplug_net.nftables.masquerade import Masquerade
from nodeplug_net.nftables.spoof_check import SpoofCheck

NETFILTER = 12
RANGES = [[{"subnet": "10.88.0.0/24"}], [{"subnet": "fd00:88::/64"}]]
CONFIGS: dict[str, dict[str, Any]] = {
    "bridge": {"bridge": "br0", "isDefaultGateway": True, "ipMasq": True, "macspoofchk": True},
    "ptp": {"ipMasq": True},
    "host-local": {},
    "static": {"bridge": "br0", "ipMasq": True, "ipam": {"type": "static", "addresses": [{"address": "10.88.1.7/24"}]}},
}
"""By what is killed; static is asked by the bridge, which keeps in its journal what another IPAM plugin returned."""
OTHER = "c9"
NEEDLE = ID.encode()


@dataclass
class Place:
    """A host with one container that stays, and one whose daemon is killed."""

    scratch: ScratchCni
    kind: str
    netns: Netns = field(default_factory=new_netns)

    @property
    def config(self) -> dict[str, Any]:
        config = {"cniVersion": "1.1.0", "name": "net", "type": "x", "ipam": {"type": "host-local", "ranges": RANGES}}
        return config | CONFIGS[self.kind]

    @property
    def plugin(self) -> str:
        return "bridge" if self.kind == "static" else self.kind

    def next_daemon(self) -> Any:
        """A daemon starts, as after each kill."""
        plugin = make(self.plugin, self.scratch.folder, self.scratch.host)
        self.scratch.on_host(plugin.start)
        return plugin

    def add(self) -> None:
        self.called(lambda plugin: self.scratch.add(plugin, self.config, ID, self.netns))

    def delete(self, netns: Netns | None) -> None:
        self.called(lambda plugin: self.scratch.delete(plugin, self.config, ID, netns))

    def gc(self) -> None:
        self.called(lambda plugin: self.scratch.gc(plugin, self.config, [(OTHER, "eth0")]))

    def called(self, call: Callable[[Any], Any]) -> Any:
        plugin = self.next_daemon()
        try:
            return call(plugin)
        finally:
            if hasattr(plugin, "stop"):
                plugin.stop()

    def end(self, ending: str) -> None:
        """Do what follows a kill; the container's namespace is a new one afterwards if it has ended."""
        if ending == "del":
            self.delete(self.netns)
        elif ending == "gc":
            self.gc()
        else:
            self.netns.close()
            self.netns = new_netns()
            self.delete(None)

    def left(self) -> list[str]:
        """Name what is left of the container on the host, in its namespace, and in any file."""

        def outside() -> list[str]:
            with Netlink() as netlink:
                links = [f"{one.name} {one.alias}" for one in Links(netlink).all()]
            with Netlink(NETFILTER) as netlink:
                elements = [one.label for one in Masquerade(netlink).entries("") if ID in one.label]
                chains = SpoofCheck(netlink).removal(Attachment("net", ID, "eth0"))
            name = Attachment("net", ID, "eth0").host_veth
            return [*(one for one in links if ID in one or name in one), *elements, *map(repr, chains)]

        files = [path for path in self.scratch.folder.rglob("*") if path.is_file()]
        # A killed write of the journal leaves its temporary file, which a look a minute later removes.
        files = [path for path in files if not (path.name.startswith(".") and path.suffix == ".tmp")]
        reserved = [path for path in files if path.parent.name == "net" and parse_address(path.name) is not None]
        return [
            *self.scratch.on_host(outside),
            *(str(path) for path in files if ID in path.name or NEEDLE in path.read_bytes()),
            *(str(path) for path in reserved if not path.read_text().startswith(OTHER)),
            *(name for name in run_in(self.netns, interfaces) if name != "lo"),
        ]


def interfaces() -> list[str]:
    with Netlink() as netlink:
        return [one.name for one in Links(netlink).all()]


@pytest.fixture
def place(scratch: ScratchCni, kind: str) -> Place:
    made = Place(scratch, kind)
    lives = scratch.container()
    made.called(lambda plugin: scratch.add(plugin, made.config, OTHER, lives))
    return made


def kinds(least: Mapping[str, int], *, quick: set[str]) -> list[Any]:
    """Give each kind with the number of steps it has at least; those of the quick suite take all kinds of steps."""
    return [
        pytest.param(kind, steps, marks=() if kind in quick else pytest.mark.whole) for kind, steps in least.items()
    ]


BY_ADD = {"bridge": 15, "ptp": 12, "host-local": 4, "static": 12}
BY_DEL = {"bridge": 6, "ptp": 5, "host-local": 1, "static": 4}
BY_GC = {"bridge": 6, "ptp": 5, "host-local": 1, "static": 6}


@pytest.mark.parametrize("ending", ["del", "none"])
@pytest.mark.parametrize(("kind", "least"), kinds(BY_ADD, quick={"bridge", "host-local"}))
def test_nothing_is_left_of_an_add_that_was_killed(place: Place, least: int, ending: str) -> None:
    seen = {False}
    assert place.left() == []
    for _ in every_step(place.scratch, lambda: place.netns, place.plugin, "add", least=least, config=place.config):
        seen.add(place.left() != [])
        place.end(ending)
        assert place.left() == []
    assert seen == {False, True}
    place.end(ending)
    assert place.left() == []


@pytest.mark.parametrize(("kind", "least"), kinds(BY_DEL, quick={"bridge"}))
def test_nothing_is_left_of_a_del_that_was_killed(place: Place, least: int) -> None:
    def prepare() -> None:
        place.add()
        assert place.left() != []

    steps = every_step(
        place.scratch, lambda: place.netns, place.plugin, "del", least=least, prepare=prepare, config=place.config
    )
    for step in steps:
        place.end(("del", "none", "gc")[step % 3])
        assert place.left() == []
    assert place.left() == []


@pytest.mark.parametrize(("kind", "least"), kinds(BY_GC, quick={"ptp", "static"}))
def test_a_gc_that_was_killed_is_repeated_to_the_end_and_takes_nothing_of_others(place: Place, least: int) -> None:
    def prepare() -> None:
        place.add()

    theirs = held(place)
    call: dict[str, Any] = {"config": place.config, "valid": [(OTHER, "eth0")], "prepare": prepare}
    for _ in every_step(place.scratch, lambda: place.netns, place.plugin, "gc", least=least, **call):
        place.gc()
        assert place.left() == []
        assert held(place) == theirs
    assert place.left() == []


def held(place: Place) -> list[str]:
    """The addresses of the container that stays: those that are reserved, or in a record of another IPAM plugin."""
    folder = place.scratch.folder / "networks" / "net"
    found = [path.name for path in folder.glob("*") if path.is_file() and path.read_text().startswith(OTHER)]
    records = (
        path for path in place.scratch.folder.rglob("*.json") if f"ipam nodeplug net {OTHER}" in path.read_text()
    )
    return sorted([*found, *(path.name for path in records)])
