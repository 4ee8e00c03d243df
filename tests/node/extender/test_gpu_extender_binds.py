"""The extender that knows the cards binds pods: what counts as taken, and what an API server may do meanwhile."""

import json
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.certificates import authority, sign
from tests.node.extender.test_gpu_extender import gpu_node, wanting

from nodeplug import ExtenderBind, ExtenderFilter, NotReady, PluginError, TryAgain, Uncertain
from nodeplug.testing import host
from nodeplug_gpu.extender.config import ExtenderConfig
from nodeplug_gpu.extender.plugin import GpuExtender

pytestmark = pytest.mark.unprivileged
NODES = {"a": gpu_node("a", 10)}


@dataclass
class ApiServer:
    """Answers as a test says: the status of a Binding, and what a pod is afterwards; None: it ends the connection."""

    port: int = 0
    binding: int | None = 201
    pod: dict[str, Any] | None = None
    asked: list[tuple[str, str, Any]] = field(default_factory=list)

    def answer(self, method: str, path: str, body: Any) -> tuple[int, Any] | None:
        self.asked.append((method, path, body))
        if method == "POST":
            return None if self.binding is None else (self.binding, {"message": "it is in the way"})
        if "/pods?" in path:
            return 200, {"items": [self.pod] if self.pod else []}
        return (200, self.pod) if self.pod is not None else (404, {"message": "there is none"})


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority(folder)
    sign(folder, "server")
    (folder / "token").write_text("secret\n")
    return folder


@pytest.fixture
def api(certificates: Path) -> Iterator[ApiServer]:
    told = ApiServer()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            assert self.headers["Authorization"] == "Bearer secret"
            found = told.answer(self.command, self.path, json.loads(self.rfile.read(length)) if length else None)
            if found is not None:
                text = json.dumps(found[1]).encode()
                self.send_response(found[0])
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

        do_POST = do_GET  # noqa: N815 - its name there

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.crt", certificates / "server.key")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        told.port = server.server_port
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield told
        server.shutdown()
        thread.join()


@pytest.fixture
def extender(api: ApiServer, certificates: Path, tmp_path: Path) -> GpuExtender:
    server = {"server": f"https://127.0.0.1:{api.port}", "token": certificates / "token"}
    config = ExtenderConfig.model_validate({"api": {**server, "ca": certificates / "authority.crt"}})
    return GpuExtender(config, host(tmp_path))


def bind(extender: GpuExtender, pod: dict[str, Any], node: str = "a") -> None:
    name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
    extender.extender_bind(ExtenderBind(claim="gpu-mem", namespace="default", pod=name, uid=uid, node=node))


def fits(extender: GpuExtender, pod: dict[str, Any]) -> bool:
    return bool(extender.extender_filter(ExtenderFilter(claim="gpu-mem", pod=pod, nodes=NODES)).nodes)


def bound(pod: dict[str, Any], node: str = "a", phase: str = "Pending") -> dict[str, Any]:
    return {**pod, "spec": {**pod["spec"], "nodeName": node}, "status": {"phase": phase}}


def test_a_binding_names_the_very_pod_and_its_units_are_taken_at_once(extender: GpuExtender, api: ApiServer) -> None:
    one, two = wanting("one", 6), wanting("two", 6)
    assert fits(extender, one)
    assert fits(extender, two)
    bind(extender, one)
    assert api.asked == [
        (
            "POST",
            "/api/v1/namespaces/default/pods/one/binding",
            {
                "apiVersion": "v1",
                "kind": "Binding",
                "metadata": {"name": "one", "namespace": "default", "uid": one["metadata"]["uid"]},
                "target": {"apiVersion": "v1", "kind": "Node", "name": "a"},
            },
        )
    ]
    assert not fits(extender, two)
    assert fits(extender, one)  # a pod is not in its own way
    with pytest.raises(TryAgain, match="another pod has come first"):
        bind(extender, two)
    assert len(api.asked) == 1


@pytest.mark.parametrize("status", [409, 500, None])
def test_a_pod_that_is_on_that_node_already_is_bound(extender: GpuExtender, api: ApiServer, status: int | None) -> None:
    one = wanting("one", 6)
    assert fits(extender, one)
    api.binding, api.pod = status, bound(one)
    bind(extender, one)
    assert not fits(extender, wanting("two", 6))


@pytest.mark.parametrize("other", [{"node": "b"}, {"uid": "another"}, {}])
def test_a_pod_that_is_not_bound_takes_nothing(extender: GpuExtender, api: ApiServer, other: dict[str, str]) -> None:
    one = wanting("one", 6)
    assert fits(extender, one)
    found = bound(one, other.get("node", "a"))
    found["metadata"] = {**found["metadata"], "uid": other.get("uid", found["metadata"]["uid"])}
    api.binding, api.pod = 409, found if other else None
    with pytest.raises(PluginError, match="the API server refuses: it is in the way"):
        bind(extender, one)
    assert fits(extender, wanting("two", 6))


def test_while_nobody_knows_whether_a_pod_is_bound_its_units_are_taken(
    extender: GpuExtender, api: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = wanting("one", 6)
    assert fits(extender, one)
    monkeypatch.setattr(api, "answer", lambda *_: None)
    with pytest.raises(Uncertain, match="nobody knows whether pod default/one is bound to a"):
        bind(extender, one)
    assert not fits(extender, wanting("two", 6))


def test_a_pod_that_was_filtered_before_the_daemon_began_is_read(extender: GpuExtender, api: ApiServer) -> None:
    one = wanting("one", 6)
    assert fits(extender, wanting("other", 1))
    api.pod = one
    bind(extender, one)
    assert [asked[0] for asked in api.asked] == ["GET", "POST"]
    assert not fits(extender, wanting("two", 6))


def test_pods_that_others_have_bound_are_taken_into_account(extender: GpuExtender, api: ApiServer) -> None:
    api.pod = bound(wanting("strange", 6))
    extender.start()
    try:
        while fits(extender, wanting("two", 6)):
            assert extender._thread is not None
            extender._thread.join(0.02)
        assert extender.inspect()["pods_under_way"] == 1
        assert "fieldSelector=status.phase%3DPending%2Cspec.nodeName%21%3D" in api.asked[0][1]
    finally:
        extender.stop()


def test_files_that_cannot_be_read_are_named_and_no_pod_counts(certificates: Path, tmp_path: Path) -> None:
    api = {"server": "https://127.0.0.1:1", "token": tmp_path / "none", "ca": certificates / "authority.crt"}
    extender, one = GpuExtender(ExtenderConfig.model_validate({"api": api}), host(tmp_path)), wanting("one", 6)
    assert fits(extender, one)
    with pytest.raises(NotReady, match=f"a file of .api. cannot be used: .*{tmp_path / 'none'}"):
        bind(extender, one)
    assert fits(extender, wanting("two", 6))
