"""A registration that kubelet does not answer, or that the cluster has lost: it is told, and made again."""

import asyncio
import itertools
import json
import threading
from collections.abc import Callable
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from nodeplug.contract.journal import Journal
from nodeplug.csi import served as announcing
from nodeplug.csi.driver import Driver
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.pb import pluginregistration_v1_pb2 as pb
from nodeplug.pb import pluginregistration_v1_pb2_grpc as pb_grpc
from nodeplug.process.lane import Lane
from nodeplug.testing import CsiCaller
from nodeplug.testing.waiting import until
from nodeplug.volumes.service import Volumes

pytestmark = pytest.mark.node
NAME = "disk.acme"


@pytest.fixture
def served(short_path: Path) -> announcing.Served:
    runner = Runner()
    volumes = Volumes(runner, Journal(short_path / "journal"), short_path / "staging")
    driver = Driver(NAME, "acme/disk", "node-1", "1", short_path / "csi", Registry(), runner, volumes)
    return announcing.Served(driver, Lane("sockets"), short_path / "plugins", short_path / "plugins_registry")


def play(served: announcing.Served, story: Callable[[], Any]) -> None:
    async def whole() -> None:
        try:
            await story()
        finally:
            await served.end(withdraw=True)

    asyncio.run(whole())


async def keep_until(served: announcing.Served, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await served.keep()
            await asyncio.sleep(0.02)


def registration(served: announcing.Served) -> Path:
    return announcing.registration_of(served.registrations, NAME)


def test_a_registration_without_a_verdict_is_withdrawn_after_a_while_and_made_again(
    served: announcing.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubelet may have missed the socket, or its verdict may be lost."""
    monkeypatch.setattr(announcing, "UNANSWERED", 0.3)
    monkeypatch.setattr(announcing, "_AFTER_REFUSAL", 0.2)

    async def story() -> None:
        await served.keep()
        first = registration(served).stat().st_ino
        await keep_until(served, lambda: not registration(served).exists())
        await keep_until(served, lambda: registration(served).exists() and registration(served).stat().st_ino != first)

    play(served, story)


def test_a_driver_that_nobody_asks_for_is_announced_ever_more_rarely_until_there_is_a_verdict(
    served: announcing.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "UNANSWERED", 0.05)
    monkeypatch.setattr(announcing, "_AFTER_REFUSAL", 0.02)
    seen: list[float] = []

    async def story() -> None:
        for _ in range(3):
            before = served.patience
            await keep_until(served, partial(differs, before))
            seen.append(served.patience)
        served.judged(pb.RegistrationStatus(plugin_registered=True))
        seen.append(served.patience)

    def differs(before: float) -> bool:
        return served.patience != before

    play(served, story)
    assert seen == [0.1, 0.2, 0.4, 0.05]


def test_a_registration_that_kubelet_has_accepted_stays(
    served: announcing.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "UNANSWERED", 0.1)

    async def story() -> None:
        await served.keep()
        first = registration(served).stat().st_ino
        served.judged(pb.RegistrationStatus(plugin_registered=True))
        for _ in range(10):
            await served.keep()
            await asyncio.sleep(0.03)
        assert (registration(served).stat().st_ino, served.problem) == (first, "")

    play(served, story)


def test_what_kubelet_has_done_with_a_registration_is_told(served: announcing.Served) -> None:
    async def story() -> None:
        await served.keep()
        assert "kubelet has not asked for it" in served.problem
        assert str(served.registrations) in served.problem
        async with grpc.aio.insecure_channel(f"unix:{registration(served)}") as channel:
            await pb_grpc.RegistrationStub(channel).GetInfo(pb.InfoRequest())
        await served.keep()
        assert "kubelet has asked for it, and not said whether it takes it" in served.problem

    play(served, story)


ABSENT = "the CSINode does not list it"
ACCEPTED = pb.RegistrationStatus(plugin_registered=True)


def test_a_driver_that_the_cluster_has_lost_is_withdrawn_and_announced_again(
    served: announcing.Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "_AFTER_REFUSAL", 0.2)

    async def story() -> None:
        await served.keep()
        served.judged(ACCEPTED)
        served.looked(ABSENT)
        assert (served.registered, served.problem) == (True, "")
        served.looked(ABSENT)
        assert (served.registered, served.problem) == (False, ABSENT)
        await keep_until(served, lambda: not registration(served).exists())
        await keep_until(served, registration(served).exists)
        assert served.problem == ABSENT
        served.judged(ACCEPTED)
        await served.keep()
        assert (served.registered, served.problem) == (True, "")

    play(served, story)


def test_one_look_before_a_registration_and_one_after_it_are_not_two(served: announcing.Served) -> None:
    async def story() -> None:
        await served.keep()
        served.looked(ABSENT)
        for _ in range(3):
            served.judged(ACCEPTED)
            served.looked(ABSENT)
            assert served.registered

    play(served, story)


def test_a_driver_that_is_lost_again_and_again_is_announced_ever_more_rarely(served: announcing.Served) -> None:
    def looks() -> int:
        """Count those that are needed, and what is told meanwhile."""
        served.judged(ACCEPTED)
        for count in itertools.count(1):
            served.looked(ABSENT)
            if not served.registered:
                return count
            assert served.problem == ("" if count < 2 else ABSENT)
        raise AssertionError

    async def story() -> None:
        await served.keep()
        assert [looks() for _ in range(6)] == [2, 4, 8, 16, 32, 32]
        served.judged(ACCEPTED)
        served.looked("")
        assert looks() == 2

    play(served, story)


def test_a_node_without_a_kubelet_says_so_until_there_is_one(start_kubelet: Callable[..., Any]) -> None:
    kubelet = start_kubelet("[plugins.tmpfs]\n")
    kubelet.info("tmpfs.nodeplug")
    assert kubelet.node.status()["csi"][0]["problem"].startswith("kubelet has")
    CsiCaller(kubelet.root, "tmpfs.nodeplug").register()
    assert [(row["registered"], row["problem"]) for row in kubelet.node.status()["csi"]] == [(True, "")]


class ApiServer(BaseHTTPRequestHandler):
    """An API server that has a CSINode without drivers."""

    def do_GET(self) -> None:
        data = json.dumps({"spec": {"drivers": []}} if "/csinodes/" in self.path else {}).encode()
        self.send_response(HTTPStatus.OK)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def problem(kubelet: Any) -> str:
    (row,) = kubelet.node.status()["csi"]
    return str(row["problem"])


@pytest.mark.parametrize("section", ["supervisor", "provisioner"])
def test_a_daemon_with_credentials_announces_again_what_the_cluster_does_not_list(
    start_kubelet: Callable[..., Any], tmp_path: Path, section: str
) -> None:
    file = tmp_path / "kubeconfig"
    line = f'kubeconfig = "{file}"\n'
    own, provisioner = (line, "") if section == "supervisor" else ("", f"[provisioner]\n{line}")
    with ThreadingHTTPServer(("127.0.0.1", 0), ApiServer) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        cluster = {"name": "here", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
        context = {"name": "here", "context": {"cluster": "here"}}
        file.write_text(json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "here"}))
        supervisor = f'listen = ""\ncsi = true\ncsi_node_poll = "100ms"\n{own}'
        kubelet = start_kubelet(f"[plugins.tmpfs]\n{provisioner}", supervisor=supervisor)
        CsiCaller(kubelet.root, "tmpfs.nodeplug").register()
        until(lambda: "does not list it, so that pods wait for it" in problem(kubelet), 60)
        until(lambda: not kubelet.registration("tmpfs.nodeplug").exists(), 60)
        CsiCaller(kubelet.root, "tmpfs.nodeplug").register()  # waits until it is there again
        server.shutdown()


def test_credentials_that_are_of_no_use_are_told_and_make_no_node_unready(
    start_kubelet: Callable[..., Any], tmp_path: Path
) -> None:
    supervisor = f'listen = ""\ncsi = true\ncsi_node_poll = "100ms"\nkubeconfig = "{tmp_path}/none"'
    kubelet = start_kubelet("[plugins.tmpfs]\n", supervisor=supervisor)
    CsiCaller(kubelet.root, "tmpfs.nodeplug").register()
    until(lambda: "cannot read the kubeconfig" in problem(kubelet), 60)
    assert kubelet.node.status()["ready"]
