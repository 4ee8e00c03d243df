"""The HTTP endpoints, asked over loopback."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest

from nodeplug import PluginError
from nodeplug.config import parse_address
from nodeplug.http.server import Bounds
from nodeplug.observe.endpoints import Endpoints
from nodeplug.observe.metrics import Metrics


@dataclass
class Served:
    metrics: Metrics = field(default_factory=Metrics)
    reasons: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    port: int = 0

    def ask(self, method: str, path: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()


@contextmanager
def serving(state: Served, address: str = "127.0.0.1:0", bounds: Bounds | None = None) -> Iterator[Endpoints]:
    """Serve from an event loop in a thread, as the daemon does from its own."""
    endpoints = Endpoints(
        address, state.metrics.registry, lambda: (not state.reasons, state.reasons), lambda: state.fault, bounds
    )
    state.port = endpoints.port
    loop, up, end = asyncio.new_event_loop(), threading.Event(), asyncio.Event()

    async def serve() -> None:
        async with endpoints:
            up.set()
            await end.wait()

    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    up.wait()
    try:
        yield endpoints
    finally:
        loop.call_soon_threadsafe(end.set)
        thread.join()
        loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    state = Served()
    with serving(state):
        yield state


def connected(served: Served, data: bytes = b"") -> socket.socket:
    peer = socket.create_connection(("127.0.0.1", served.port), timeout=60)
    peer.sendall(data)
    return peer


def ended(peer: socket.socket) -> bool:
    """Wait until the server ends the connection; anything else is a timeout."""
    try:
        while peer.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


def test_healthz_is_ok_while_the_daemon_lives(served: Served) -> None:
    response, body = served.ask("GET", "/healthz")
    assert (response.status, body) == (200, b"ok\n")


def test_healthz_says_why_the_daemon_should_be_restarted(served: Served) -> None:
    served.fault = "the event loop has not turned for 60 s"
    response, body = served.ask("GET", "/healthz")
    assert (response.status, body) == (503, b"the event loop has not turned for 60 s\n")


def test_readyz_is_ok_when_every_plugin_serves(served: Served) -> None:
    response, body = served.ask("GET", "/readyz")
    assert (response.status, json.loads(body)) == (200, {"ready": True, "reasons": {}})


def test_readyz_names_the_plugins_that_do_not_serve(served: Served) -> None:
    served.reasons["gpu"] = "no driver"
    response, body = served.ask("GET", "/readyz")
    assert (response.status, json.loads(body)) == (503, {"ready": False, "reasons": {"gpu": "no driver"}})


def test_metrics_are_served_in_prometheus_form(served: Served) -> None:
    served.metrics.sample({"calls": [], "spool": 3, "stranded": [], "plugins": [], "resources": []})
    response, body = served.ask("GET", "/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/plain")
    assert b"\nnodeplug_spooled_deletes 3.0\n" in body


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_head_answers_the_headers_alone(served: Served, path: str) -> None:
    whole, _ = served.ask("GET", path)
    head, body = served.ask("HEAD", path)
    assert (head.status, head.headers["Content-Type"], body) == (200, whole.headers["Content-Type"], b"")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
@pytest.mark.parametrize("path", ["/healthz", "/metrics"])
def test_other_methods_are_not_allowed(served: Served, method: str, path: str) -> None:
    response, _ = served.ask(method, path)
    assert (response.status, response.headers["Allow"]) == (405, "GET, HEAD")


@pytest.mark.parametrize("path", ["/", "/metrics/", "/favicon.ico"])
def test_other_paths_are_not_found_and_the_answer_names_the_known_ones(served: Served, path: str) -> None:
    response, body = served.ask("GET", path)
    assert response.status == 404
    assert b"/healthz, /readyz, /metrics" in body


def test_query_is_ignored(served: Served) -> None:
    assert served.ask("GET", "/healthz?verbose")[0].status == 200


def test_silent_client_does_not_keep_others_waiting(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)):
        assert served.ask("GET", "/healthz")[0].status == 200


def test_client_that_goes_away_in_the_middle_leaves_the_server_well(served: Served) -> None:
    with socket.create_connection(("127.0.0.1", served.port)) as peer:
        peer.sendall(b"GET /metr")
    assert served.ask("GET", "/healthz")[0].status == 200


TIGHT = Bounds(connections=8, request=1.0, idle=1.0)
GET = b"GET /healthz HTTP/1.1\r\nHost: node\r\n\r\n"


def test_silent_connections_beyond_the_bound_give_way_to_whoever_asks() -> None:
    state = Served()
    with serving(state, bounds=Bounds(connections=8, request=3600)):
        held = [connected(state, b"GET /") for _ in range(100)]
        for _ in range(20):
            assert state.ask("GET", "/healthz")[0].status == 200
        assert all(ended(peer) for peer in held[:80])
        for peer in held:
            peer.close()


def test_a_request_that_trickles_in_is_dropped_after_its_time_in_total() -> None:
    state = Served()
    with serving(state, bounds=TIGHT), connected(state, b"GET /healthz HTTP/1.1\r\n") as peer:
        with pytest.raises(OSError):  # noqa: PT011, PT012 - reset, or a broken pipe
            while True:
                peer.sendall(b"x")
                time.sleep(0.05)
        assert state.ask("GET", "/healthz")[0].status == 200


def test_an_answer_that_is_not_read_is_dropped_after_its_time() -> None:
    state = Served(fault="x" * (1 << 20))  # so that few answers fill the buffers of a connection
    with serving(state, bounds=TIGHT), connected(state) as peer:
        peer.settimeout(0.2)
        with pytest.raises(OSError):  # noqa: PT011, PT012 - reset, or a broken pipe
            while True:
                try:
                    peer.sendall(GET * 1000)
                except TimeoutError:
                    continue
        state.fault = ""
        assert state.ask("GET", "/healthz")[0].status == 200


def test_a_connection_serves_several_requests_and_ends_when_it_is_idle() -> None:
    state = Served()
    with serving(state, bounds=TIGHT):
        connection = HTTPConnection("127.0.0.1", state.port, timeout=60)
        for _ in range(3):
            connection.request("GET", "/healthz")
            assert connection.getresponse().read() == b"ok\n"
        assert connection.sock is not None
        assert ended(connection.sock)
        connection.close()


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\nContent-Length: 10000000\r\nHost: x\r\n\r\n" + b"x" * 200_000, b"413"),
        (b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
    ],
)
def test_what_is_too_large_or_no_request_is_refused_and_the_connection_ends(
    served: Served, data: bytes, status: bytes
) -> None:
    with connected(served) as peer:
        answer = b""
        try:
            peer.sendall(data)
            while part := peer.recv(4096):
                answer += part
        except ConnectionError:  # it may end while we still send
            pass
        assert not answer or answer.split()[1] == status
    assert served.ask("GET", "/healthz")[0].status == 200


def test_metrics_that_take_long_to_write_hold_up_no_probe(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go = threading.Event(), threading.Event()

    class Slow:
        def collect(self) -> list[Any]:
            begun.set()
            go.wait(30)
            return []

    served.metrics.registry.register(
        Slow(),
    )
    go.clear()
    begun.clear()
    with connected(served, GET.replace(b"/healthz", b"/metrics")) as scrape:
        assert begun.wait(30)
        assert served.ask("GET", "/healthz")[0].status == 200
        go.set()
        assert scrape.recv(100).startswith(b"HTTP/1.1 200")


def test_busy_port_is_a_clear_error(served: Served) -> None:
    with pytest.raises(PluginError, match=rf"127\.0\.0\.1:{served.port}: another process listens there; set .*listen"):
        Endpoints(f"127.0.0.1:{served.port}", served.metrics.registry, lambda: (True, {}))


def test_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(PluginError, match="Cannot assign requested address"):
        Endpoints("192.0.2.1:0", Metrics().registry, lambda: (True, {}))


def test_closed_endpoints_free_their_port() -> None:
    with serving(Served()) as endpoints:
        port = endpoints.port
    with serving(Served(), f"127.0.0.1:{port}"):
        pass


def test_a_restarted_daemon_gets_its_port_although_connections_of_the_former_linger() -> None:
    state = Served()
    with serving(state) as first:
        state.ask("GET", "/metrics")  # the server ends the connection first, which the kernel remembers for a minute
    with serving(state, f"127.0.0.1:{first.port}") as second:
        assert second.port == first.port


def test_ipv6_address_is_served() -> None:
    with serving(Served(), "[::1]:0") as endpoints:
        connection = HTTPConnection("::1", endpoints.port, timeout=60)
        connection.request("GET", "/healthz")
        assert connection.getresponse().read() == b"ok\n"
        connection.close()


@pytest.mark.parametrize(
    ("text", "parsed"),
    [("127.0.0.1:9808", ("127.0.0.1", 9808)), ("[::1]:80", ("::1", 80)), (":9808", ("", 9808)), ("h:0", ("h", 0))],
)
def test_addresses_are_split(text: str, parsed: tuple[str, int]) -> None:
    assert parse_address(text) == parsed


@pytest.mark.parametrize("text", ["9808", "127.0.0.1", "::1:80", "h:port", "h:70000", "h:", "[::1]"])
def test_other_texts_are_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"such as 127\.0\.0\.1:9808"):
        parse_address(text)
