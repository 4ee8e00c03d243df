"""The HTTP endpoints, asked over loopback."""

import json
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse

import pytest

from nodeplug import PluginError
from nodeplug.config import parse_address
from nodeplug.observe.http import Endpoints
from nodeplug.observe.metrics import Metrics


@dataclass
class Served:
    metrics: Metrics = field(default_factory=Metrics)
    reasons: dict[str, str] = field(default_factory=dict)
    fault: str = ""
    port: int = 0

    def ask(self, method: str, path: str) -> tuple[HTTPResponse, bytes]:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path)
            response = connection.getresponse()
            return response, response.read()
        finally:
            connection.close()


@pytest.fixture
def served() -> Iterator[Served]:
    state = Served()
    with Endpoints(
        "127.0.0.1:0", state.metrics.registry, lambda: (not state.reasons, state.reasons), lambda: state.fault
    ) as endpoints:
        state.port = endpoints.port
        yield state


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
    served.metrics.spool(3)
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


def test_busy_port_is_a_clear_error(served: Served) -> None:
    with pytest.raises(PluginError, match=rf"127\.0\.0\.1:{served.port}: another process listens there; set .*listen"):
        Endpoints(f"127.0.0.1:{served.port}", served.metrics.registry, lambda: (True, {}))


def test_address_of_another_machine_is_a_clear_error() -> None:
    with pytest.raises(PluginError, match="Cannot assign requested address"):
        Endpoints("192.0.2.1:0", Metrics().registry, lambda: (True, {}))


def test_closed_endpoints_free_their_port() -> None:
    with Endpoints("127.0.0.1:0", Metrics().registry, lambda: (True, {})) as endpoints:
        port = endpoints.port
    with Endpoints(f"127.0.0.1:{port}", Metrics().registry, lambda: (True, {})):
        pass


def test_a_restarted_daemon_gets_its_port_although_connections_of_the_former_linger() -> None:
    state = Served()
    with Endpoints("127.0.0.1:0", state.metrics.registry, lambda: (True, {})) as first:
        state.port = first.port
        state.ask("GET", "/metrics")  # the server ends the connection first, which the kernel remembers for a minute
    with Endpoints(f"127.0.0.1:{state.port}", state.metrics.registry, lambda: (True, {})) as second:
        assert second.port == state.port


def test_ipv6_address_is_served() -> None:
    with Endpoints("[::1]:0", Metrics().registry, lambda: (True, {})) as endpoints:
        connection = HTTPConnection("::1", endpoints.port, timeout=10)
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
