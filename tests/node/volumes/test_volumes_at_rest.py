"""A driver whose plugin does not run, as after a failed start: what ends all the same, and what waits for it."""

import asyncio
import json
from typing import Any

import pytest

pytestmark = pytest.mark.node
DRIVER = "acme/disk"
OPTIONS = {"name": "data", "kubernetes.io/readwrite": "rw"}


def put_to_rest(node: Any) -> None:
    node.registry.slots["disk"].enter("failed", "no licence")


def test_unmount_of_a_default_bind_ends_the_pod(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    put_to_rest(node)
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert [path for path in node.mounted if path.startswith("pods")] == []
    assert not [record for record in node.records if record.startswith("target")]
    assert stager.calls == ["stage"]


def test_what_the_plugin_unstages_itself_stays_staged(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    put_to_rest(node)
    node.unmount(DRIVER, target)
    assert len(node.mounted) == 1
    assert [record.split()[0] for record in node.records] == ["volume"]


def test_what_stayed_staged_goes_when_the_plugin_is_back(node: Any, stager: Any) -> None:
    async def story() -> None:
        service = node.service()
        one, other = node.target("a"), node.target("b")
        await node.handle(service, DRIVER, "mount", str(one), json.dumps(OPTIONS))
        put_to_rest(node)
        await node.handle(service, DRIVER, "unmount", str(one))
        node.registry.slots["disk"].enter("running")
        await node.handle(service, DRIVER, "mount", str(other), json.dumps(OPTIONS | {"name": "other"}))

    asyncio.run(story())
    assert stager.calls == ["stage", "stage", "unstage"]
    assert len(node.mounted) == 2


def test_what_stayed_staged_and_is_used_again_stays(node: Any, stager: Any) -> None:
    async def story() -> None:
        service = node.service()
        target = node.target("a")
        await node.handle(service, DRIVER, "mount", str(target), json.dumps(OPTIONS))
        put_to_rest(node)
        await node.handle(service, DRIVER, "unmount", str(target))
        node.registry.slots["disk"].enter("running")
        await node.handle(service, DRIVER, "mount", str(target), json.dumps(OPTIONS))

    asyncio.run(story())
    assert stager.calls == ["stage"]
    assert len(node.mounted) == 2


def test_what_stayed_staged_goes_at_the_next_start(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    put_to_rest(node)
    node.unmount(DRIVER, target)
    node.registry.slots["disk"].enter("running")
    node.recover()
    assert stager.calls == ["stage", "unstage"]
    assert (node.mounted, node.records) == ([], [])


def test_unmount_that_the_plugin_does_itself_waits_for_it(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    put_to_rest(node)
    answer = node.unmount(DRIVER, target)
    assert answer["status"] == "Failure"
    assert "not running: its start failed: no licence" in answer["message"]
    assert node.mounted == ["pods/a"]


def test_mount_waits_for_the_plugin(node: Any) -> None:
    put_to_rest(node)
    assert node.mount(DRIVER, node.target("a"), OPTIONS)["status"] == "Failure"
    assert node.mounted == []


def test_unmountdevice_that_the_plugin_does_itself_waits_for_it(make_node: Any, attacher: Any) -> None:
    node = make_node(disk=attacher)
    device = node.target("device")
    node.call(DRIVER, "mountdevice", str(device), "/dev/x", json.dumps(OPTIONS))
    put_to_rest(node)
    assert node.call(DRIVER, "unmountdevice", str(device))["status"] == "Failure"
    assert node.mounted == ["pods/device"]
