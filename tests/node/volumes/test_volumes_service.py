"""The FlexVolume service: overdue hooks, drivers with attach, verbs that a driver lacks, and secrets."""

import asyncio
import base64
import json
import logging
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from nodeplug import (
    PluginError,
    VolumePublish,
)

pytestmark = pytest.mark.node
DRIVER = "acme/disk"
OPTIONS = {"name": "data", "kubernetes.io/readwrite": "rw"}
READ_ONLY = OPTIONS | {"kubernetes.io/readwrite": "ro"}


def succeeded(answer: dict[str, Any]) -> bool:
    return bool(answer["status"] == "Success")


def test_an_overdue_publish_is_answered_and_completed_when_it_ends(make_node: Any, publisher: Any) -> None:
    ending = threading.Event()
    publisher.act = lambda _: ending.wait(60)
    node = make_node({"disk": {"volume_publish": 0.1}}, disk=publisher)
    target = node.target("a")

    async def mount_twice() -> list[dict[str, Any]]:
        service = node.service()
        argv = ("mount", str(target), json.dumps(OPTIONS))
        first = await node.handle(service, DRIVER, *argv)
        asyncio.get_running_loop().call_later(0.1, ending.set)
        return [first, await node.handle(service, DRIVER, *argv)]

    first, second = asyncio.run(mount_twice())
    assert (first["status"], second["status"]) == ("Failure", "Success")
    assert publisher.calls == ["publish data"]


def test_an_overdue_publish_that_fails_late_leaves_nothing_mounted(make_node: Any, publisher: Any) -> None:
    ending = threading.Event()

    def fail_late(_: VolumePublish) -> None:
        ending.wait(60)
        raise PluginError("too late")

    publisher.act = fail_late
    node = make_node({"disk": {"volume_publish": 0.1}}, disk=publisher)
    target = node.target("a")

    async def mount_then_unmount() -> list[str]:
        service = node.service()
        answer = await node.handle(service, DRIVER, "mount", str(target), json.dumps(OPTIONS))
        assert answer["status"] == "Failure"
        asyncio.get_running_loop().call_later(0.1, ending.set)
        await node.handle(service, DRIVER, "unmount", str(target))  # waits for the work in progress
        return list(publisher.calls)

    assert asyncio.run(mount_then_unmount()) == ["publish data", "unpublish data"]
    assert (node.mounted, node.records) == ([], [])


def test_a_caller_that_goes_away_does_not_stop_a_mount_half_way(node: Any, stager: Any) -> None:
    stager.pause = 0.2
    target = node.target("a")

    async def hang_up_then_repeat() -> dict[str, Any]:
        service = node.service()
        argv = ("mount", str(target), json.dumps(OPTIONS))
        first = asyncio.create_task(node.handle(service, DRIVER, *argv))
        while not stager.calls:
            await asyncio.sleep(0.01)
        first.cancel()
        answer: dict[str, Any] = await node.handle(service, DRIVER, *argv)
        return answer

    assert succeeded(asyncio.run(hang_up_then_repeat()))
    assert stager.calls == ["stage"]


SECRET = b"correct-horse-battery"


@pytest.fixture
def leaky(make_node: Any, publisher: Any, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """A node whose plugin puts its secret into an error."""

    def leak(request: VolumePublish) -> None:
        raise PluginError(f"login with {request.secrets['password'].decode()} was refused")

    publisher.act = leak
    with caplog.at_level(logging.DEBUG):
        yield make_node(disk=publisher)


def test_a_secret_in_a_plugins_error_reaches_neither_kubelet_nor_the_log(
    leaky: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(SECRET).decode()}
    answer = leaky.mount(DRIVER, leaky.target("a"), options)
    assert "login with *** was refused" in answer["message"]
    assert SECRET.decode() not in caplog.text


def test_a_secret_in_the_argv_of_a_failed_tool_reaches_neither_kubelet_nor_the_log(
    make_node: Any, publisher: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def mount_with_a_tool(request: VolumePublish) -> None:
        subprocess.run(["false", "-o", f"password={request.secrets['password'].decode()}"], check=True)

    publisher.act = mount_with_a_tool
    node = make_node(disk=publisher)
    secret = 'it\'s "quoted" and \u00fcber'
    options = OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(secret.encode()).decode()}
    with caplog.at_level(logging.DEBUG):
        answer = node.mount(DRIVER, node.target("a"), options)
    assert "password=***" in answer["message"]
    assert "in mount_with_a_tool" in caplog.text  # the traceback is there all the same
    assert not any("quoted" in text for text in (answer["message"], caplog.text))


def test_each_failure_is_logged_once_with_its_request_id(leaky: Any, caplog: pytest.LogCaptureFixture) -> None:
    options = OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(SECRET).decode()}
    answer = leaky.mount(DRIVER, leaky.target("a"), options)
    lines = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(lines) == 1
    request = answer["message"].rpartition("(request ")[2].rstrip(")")
    assert f"(request {request})" in lines[0]


@pytest.mark.parametrize("kind", [PluginError, ValueError])
def test_a_secret_of_the_mount_in_an_error_of_unmount_reaches_neither_kubelet_nor_the_log(
    make_node: Any, publisher: Any, caplog: pytest.LogCaptureFixture, kind: type[Exception]
) -> None:
    def refuse(_: Any) -> None:
        raise kind(f"cannot log out with {SECRET.decode()}, {SECRET.hex()} or {base64.b64encode(SECRET).decode()}")

    publisher.act_down = refuse
    node = make_node(disk=publisher)
    options = OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(SECRET).decode()}
    target = node.target("a")

    async def mount_then_unmount() -> dict[str, Any]:
        service = node.service()
        assert succeeded(await node.handle(service, DRIVER, "mount", str(target), json.dumps(options)))
        answer: dict[str, Any] = await node.handle(service, DRIVER, "unmount", str(target))
        return answer

    with caplog.at_level(logging.DEBUG):
        answer = asyncio.run(mount_then_unmount())
    assert "cannot log out with ***, *** or ***" in answer["message"]
    assert not any(form in caplog.text for form in (SECRET.decode(), SECRET.hex(), base64.b64encode(SECRET).decode()))


@pytest.mark.parametrize("argv", [("{}",), ("unmount", "{}"), ("mount", "{}", "/target"), ("detach", "{}", "node")])
def test_options_in_the_wrong_place_reach_neither_answer_nor_log_nor_record(
    make_node: Any, publisher: Any, caplog: pytest.LogCaptureFixture, argv: tuple[str, ...]
) -> None:
    secret = base64.b64encode(SECRET).decode()
    options = json.dumps({"kubernetes.io/secret/password": secret})
    node = make_node(disk=publisher)
    finished: list[str] = []

    async def ask() -> dict[str, Any]:
        service = node.service()
        service.runner.finished = lambda call, error: finished.append(f"{call} {error}")
        answer: dict[str, Any] = await node.handle(service, DRIVER, *(text.replace("{}", options) for text in argv))
        return answer

    with caplog.at_level(logging.DEBUG):
        answer = asyncio.run(ask())
    assert not succeeded(answer)
    assert len(finished) == 1
    assert not any(secret in text for text in (str(answer), caplog.text, *finished))


def test_no_secret_and_no_option_is_written_to_the_journal(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)
    encoded = base64.b64encode(SECRET).decode()
    node.mount(DRIVER, node.target("a"), OPTIONS | {"kubernetes.io/secret/password": encoded, "login": "opt-value"})
    text = b"".join(path.read_bytes() for path in node.journal.folder.iterdir())
    assert text
    assert not any(word in text for word in (SECRET, encoded.encode(), b"opt-value"))


def test_a_driver_with_attach_is_staged_by_mountdevice_and_bound_by_mount(make_node: Any, attacher: Any) -> None:
    node = make_node(disk=attacher)
    device_dir, target = node.target("device"), node.target("a")
    text = json.dumps(OPTIONS)
    assert node.call(DRIVER, "attach", text, "node-1")["device"] == "/dev/disk/data"
    assert node.call(DRIVER, "waitforattach", "/dev/disk/data", text)["device"] == "/dev/disk/data"
    assert succeeded(node.call(DRIVER, "mountdevice", str(device_dir), "/dev/disk/data", text))
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert node.mounted == ["pods/device", "pods/a"]
    assert succeeded(node.unmount(DRIVER, target))
    assert node.mounted == ["pods/device"]
    assert succeeded(node.call(DRIVER, "unmountdevice", str(device_dir)))
    assert succeeded(node.call(DRIVER, "detach", "pv-1", "node-1"))
    assert (node.mounted, node.records) == ([], [])
    assert attacher.calls == ["stage", "unstage", "detach pv-1 node-1"]


def test_a_failed_mountdevice_leaves_nothing_mounted(make_node: Any, attacher: Any) -> None:
    attacher.fail = "stage"
    node = make_node(disk=attacher)
    answer = node.call(DRIVER, "mountdevice", str(node.target("device")), "/dev/x", json.dumps(OPTIONS))
    assert answer["status"] == "Failure"
    assert (node.mounted, node.records) == ([], [])


@pytest.mark.parametrize(
    "argv",
    [
        ["getvolumename", "{}"],
        ["attach", "{}", "n"],
        ["detach", "v", "n"],
        ["isattached", "{}", "n"],
        ["waitforattach", "/dev/x", "{}"],
        ["mountdevice", "/a/b", "/dev/x", "{}"],
        ["unmountdevice", "/a/b"],
        ["expandvolume", "{}", "/a/b", "2", "1"],
        ["expandfs", "{}", "/dev/x", "/a/b", "2", "1"],
        ["snapshot"],
    ],
)
def test_a_verb_that_the_driver_lacks_is_not_supported(node: Any, argv: list[str]) -> None:
    assert node.call(DRIVER, *argv)["status"] == "Not supported"


@pytest.mark.parametrize("argv", [["mount", "/a/b"], ["mount", "relative", "{}"], ["mount", "/a/b", "[]"], []])
def test_a_malformed_call_is_a_failure(node: Any, argv: list[str]) -> None:
    assert node.call(DRIVER, *argv)["status"] == "Failure"


def test_a_driver_that_is_not_loaded_is_a_failure(node: Any) -> None:
    answer = node.call("acme/other", "mount", "/a/b", "{}")
    assert answer["status"] == "Failure"
    assert "acme/disk" in answer["message"]


def test_init_tells_the_capabilities(node: Any) -> None:
    assert node.call(DRIVER, "init")["capabilities"]["attach"] is False
