"""The ports of the host: who has one, who is told so, and when it is free again."""

import errno
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.node.outside import HOST
from tests.node.portmap.lab import DATAGRAM, STREAM, Lab, listening, mapping, nft, restarted, serve

from nodeplug import TryAgain
from nodeplug.testing.waiting import until
from nodeplug_net.portmap import reservations
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig
from nodeplug_net.portmap.reservations import _sockets_of


@pytest.mark.parametrize(
    "second",
    [
        {"hostPort": 8080, "containerPort": 80, "hostIP": "0.0.0.0"},
        {"hostPort": 8080, "containerPort": 81},
        {"hostPort": 8080, "containerPort": 80, "hostIP": "127.0.0.1"},
    ],
)
@pytest.mark.parametrize("keys", [{}, {"conditionsV4": ["!", "-i", "eth9"]}])
def test_of_two_mappings_of_one_port_the_first_counts(
    lab: Lab, second: dict[str, Any], keys: dict[str, list[str]]
) -> None:
    ports = [mapping(8080), {**second, "protocol": "tcp"}]
    lab.add("c1", *ports, **keys)
    lab.check("c1", *ports, **keys)
    lab.serve("c1")
    assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    with pytest.raises(OSError, match="Address already in use"), listening(lab, 8080):
        pass


@pytest.mark.parametrize("kind", [STREAM, DATAGRAM])
def test_a_connection_of_the_host_from_a_port_does_not_keep_it_from_a_container(lab: Lab, kind: int) -> None:
    ports = mapping(40000, protocol="tcp" if kind == STREAM else "udp")

    def connect() -> socket.socket:
        made = socket.socket(socket.AF_INET, kind)
        made.bind((HOST[4], 40000))
        made.connect(("192.0.2.2", 9))
        return made

    lab.attach("c1")
    serve(lab.outside, 9, kind, b"outside")
    with lab.scratch.on_host(connect):
        lab.add("c1", ports)
        lab.serve("c1", kind=kind)
        assert lab.ask(lab.outside, 40000, kind=kind) == "c1 192.0.2.2"

    def reserved() -> bool:
        lab.scratch.status(lab.portmap, lab.config())
        try:
            with listening(lab, 40000, kind):
                return False
        except OSError as error:
            return error.errno == errno.EADDRINUSE

    until(reserved)  # the kernel ends a connection of TCP some time after the program has


@contextmanager
def repeating(*steps: Callable[[], object]) -> Iterator[None]:
    """Do something again and again meanwhile."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.is_set():
            for step in steps:
                step()

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(repeat)
        try:
            yield
        finally:
            ended.set()
        running.result()


@pytest.mark.whole
def test_status_beside_del_does_not_reserve_the_ports_again(lab: Lab) -> None:
    ports = [mapping(number) for number in range(8000, 8040)]
    with repeating(lambda: lab.scratch.status(lab.portmap, lab.config())):
        for _ in range(20):
            lab.add("c1", *ports)
            lab.delete("c1")
    for number in range(8000, 8040):
        with listening(lab, number):
            pass


@pytest.mark.whole
def test_status_beside_del_does_not_restore_the_ports(lab: Lab) -> None:
    lab.add("c0", mapping(8079))
    with repeating(lambda: nft(lab, "flush", "ruleset"), lambda: lab.scratch.status(lab.portmap, lab.config())):
        for number in range(30):
            lab.add("c1", mapping(8080))
            lab.delete("c1")
            assert "nodeplug net c1 eth0" not in lab.ports(), number


@pytest.mark.parametrize("protocol", ["tcp", "udp"])
def test_a_second_taker_of_a_port_is_told_who_has_it(lab: Lab, protocol: str) -> None:
    lab.add("c1", mapping(8080, protocol=protocol))
    with pytest.raises(TryAgain, match=rf"host port 8080/{protocol} belongs to 'nodeplug net c1 eth0'"):
        lab.add("c2", mapping(8081, protocol=protocol), mapping(8080, protocol=protocol))
    assert lab.ports() == {"nodeplug net c1 eth0"}
    lab.add("c2", mapping(8081, protocol=protocol))


def test_an_address_of_a_port_that_somebody_has_whole_is_taken(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    with pytest.raises(TryAgain, match=r"host port 192\.0\.2\.1:8080/tcp belongs to 'nodeplug net c1 eth0'"):
        lab.add("c2", mapping(8080, hostIP="192.0.2.1"))


def test_a_port_that_a_program_of_the_host_serves_is_refused_with_its_name(lab: Lab) -> None:
    with listening(lab, 8080), pytest.raises(TryAgain, match=r"host port 8080/tcp is used by process \d+ \(.+\)"):
        lab.add("c1", mapping(8080))
    lab.add("c1", mapping(8080))


def test_a_program_that_is_not_found_soon_has_no_name(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reservations, "_SEARCH", 0)
    with listening(lab, 8080), pytest.raises(TryAgain, match="host port 8080/tcp is used by another program"):
        lab.add("c1", mapping(8080))


def test_a_descriptor_that_is_closed_meanwhile_hides_no_other(tmp_path: Path) -> None:
    (tmp_path / "fd").mkdir()
    for number in range(5):
        (tmp_path / "fd" / f"{number}").touch()  # readlink(2) fails, as for one that is gone
    (tmp_path / "fd" / "5").symlink_to("socket:[77]")
    assert list(_sockets_of(tmp_path)) == ["77"]


@pytest.mark.parametrize("kind", [STREAM, DATAGRAM])
def test_a_program_of_the_host_cannot_take_a_port_until_the_container_ends(lab: Lab, kind: int) -> None:
    ports = mapping(8080, protocol="tcp" if kind == STREAM else "udp")
    lab.add("c1", ports)
    with pytest.raises(OSError, match="Address already in use"), listening(lab, 8080, kind):
        pass
    lab.delete("c1", ports)
    with listening(lab, 8080, kind):
        pass


def test_where_the_runtime_binds_ports_itself_none_is_bound_and_containers_are_kept_apart_all_the_same(
    lab: Lab,
) -> None:
    lab.portmap = Portmap(PortmapConfig(reserve=False), lab.scratch.host)
    with listening(lab, 8080):
        lab.add("c1", mapping(8080))
    with listening(lab, 8080):
        lab.serve("c1")
        assert lab.ask(lab.outside, 8080) == "c1 192.0.2.2"
    with pytest.raises(TryAgain, match=r"host port 8080/tcp belongs to 'nodeplug net c1 eth0'"):
        lab.add("c2", mapping(8080))
    lab.portmap.stop()


def test_connections_that_ended_lately_do_not_keep_a_port(lab: Lab) -> None:
    with listening(lab, 8080) as server:
        client = lab.scratch.on_host(lambda: socket.create_connection(("127.0.0.1", 8080)))
        accepted, _ = server.accept()
        accepted.close()  # first, so that this end waits for late packets
        client.close()
    lab.add("c1", mapping(8080))
    with pytest.raises(OSError, match="Address already in use"), listening(lab, 8080):
        pass


def test_a_restarted_daemon_reserves_the_ports_again(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    kept = lab.scratch.host.sockets
    for name in kept.names():
        kept.drop(name)  # they end with the daemon
    with listening(lab, 8080):
        pass
    with restarted(lab), pytest.raises(OSError, match="Address already in use"), listening(lab, 8080):
        pass


def test_a_plugin_that_is_exchanged_goes_on_with_the_ports_and_releases_them_in_the_end(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    with pytest.raises(OSError, match="Address already in use"), listening(lab, 8080):
        pass
    with restarted(lab) as again:
        lab.scratch.delete(again, lab.config(), "c1")
        with listening(lab, 8080):
            pass


def test_ports_are_released_by_an_exchange_for_a_plugin_that_is_not_to_reserve_them(lab: Lab) -> None:
    lab.add("c1", mapping(8080))
    lab.portmap.stop()
    again = Portmap(PortmapConfig(reserve=False), lab.scratch.host)
    lab.scratch.on_host(again.start)
    with listening(lab, 8080):
        pass
    again.stop()
