"""A daemon that is killed before any step of an ADD, DEL or GC: nothing leaks, and nothing is lost."""

import json
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.node import killing
from tests.node.portmap.killed import RESULT
from tests.node.portmap.lab import NETFILTER, mapping

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig
from nodeplug_net.portmap.table import PortTable

PORTS = [mapping(8080), mapping(8081, protocol="udp")]
CONFIG: Mapping[str, Any] = {
    "cniVersion": "1.1.0",
    "name": "net",
    "runtimeConfig": {"portMappings": PORTS},
    "conditionsV6": ["-i", "up0"],
}
LABEL = "nodeplug net c1 eth0"


def every_step(scratch: ScratchCni, verb: str, prepare: Callable[[], object] = lambda: None) -> Iterator[int]:
    words = [str(scratch.folder), scratch.host_netns.path, verb, json.dumps(CONFIG)]
    return killing.every_step(
        "tests.node.portmap.killed", words, least={"add": 20, "del": 5, "gc": 6}[verb], prepare=prepare
    )


@contextmanager
def next_daemon(scratch: ScratchCni) -> Iterator[Portmap]:
    plugin = Portmap(PortmapConfig(), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


def forwarded(scratch: ScratchCni) -> bool:
    """Whether the table has the whole of c1's ports; a part of them fails the test."""

    def read() -> tuple[int, int, list[str]]:
        with Netlink(NETFILTER) as netlink:
            table = PortTable(netlink)
            return len(table.owned(LABEL)), len(table.labels("nodeplug ")), table.lacking()

    elements, labels, lacking = scratch.on_host(read)
    assert (elements, labels) in {(0, 0), (8, 1)}
    assert not lacking or not elements
    return elements == 8


def reserved(scratch: ScratchCni) -> bool:
    def bind() -> bool:
        with socket.socket() as made:
            try:
                made.bind(("0.0.0.0", 8080))
            except OSError:
                return True
        return False

    return scratch.on_host(bind)


def records(scratch: ScratchCni) -> list[Path]:
    return list((scratch.host.run_dir / "ports").glob("*.json"))


@pytest.mark.whole
def test_what_an_add_left_is_whole_or_gone_for_the_next_daemon_and_ended_by_del(scratch: ScratchCni) -> None:
    seen = set()
    for _ in every_step(scratch, "add"):
        with next_daemon(scratch) as daemon:
            whole = forwarded(scratch)
            seen.add(whole)
            assert reserved(scratch) == bool(records(scratch)) == whole
            scratch.delete(daemon, CONFIG, "c1")
            assert (forwarded(scratch), reserved(scratch), records(scratch)) == (False, False, [])
    assert seen == {False, True}


def test_a_del_that_was_cut_off_is_repeated_to_the_end(scratch: ScratchCni) -> None:
    def prepare() -> None:
        with suppress(FileNotFoundError):
            assert records(scratch) == []
        with next_daemon(scratch) as daemon:
            scratch.add(daemon, CONFIG, "c1", scratch.host_netns, prev_result=RESULT)

    for _ in every_step(scratch, "del", prepare):
        with next_daemon(scratch) as daemon:
            scratch.delete(daemon, {"cniVersion": "1.1.0", "name": "net"} if records(scratch) else CONFIG, "c1")
            assert (forwarded(scratch), reserved(scratch), records(scratch)) == (False, False, [])


def test_a_gc_that_was_cut_off_is_repeated_to_the_end_and_takes_nothing_of_others(scratch: ScratchCni) -> None:
    other = {**CONFIG, "runtimeConfig": {"portMappings": [mapping(8090)]}}

    def add(config: Mapping[str, Any], container: str) -> None:
        with next_daemon(scratch) as daemon:
            scratch.add(daemon, config, container, scratch.host_netns, prev_result=RESULT)

    def state() -> tuple[dict[str, int], bool, int]:
        """How many elements each attachment has, whether c1's port is taken, and how many records there are."""

        def read() -> dict[str, int]:
            with Netlink(NETFILTER) as netlink:
                table = PortTable(netlink)
                assert table.lacking() == []
                return {label: len(table.owned(label)) for label in table.labels("nodeplug ")}

        return scratch.on_host(read), reserved(scratch), len(records(scratch))

    add(other, "c9")
    with next_daemon(scratch):
        alone = state()
    assert (list(alone[0]), *alone[1:]) == (["nodeplug net c9 eth0"], False, 1)
    for _ in every_step(scratch, "gc", lambda: add(CONFIG, "c1")):
        with next_daemon(scratch) as daemon:
            scratch.gc(daemon, CONFIG, [("c9", "eth0")])
            assert state() == alone
