"""A driver whose plugin was taken out of the configuration while pods had its volumes: the pods end all the same."""

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import pytest

from nodeplug import mount, unmount
from nodeplug.volumes import service as volumes_service
from nodeplug.volumes.ledger import UNPUBLISHING
from nodeplug.volumes.records import Records

pytestmark = pytest.mark.node
DRIVER = "acme/disk"
OPTIONS = {"name": "data", "kubernetes.io/readwrite": "rw"}
BELOW_KUBELET = "0001/volumes/acme~disk/data"


def test_unmount_of_a_recorded_target_ends_the_pod(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.registry.exchange(["disk"], ())
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert [path for path in node.mounted if path.startswith("pods")] == []


def test_unmount_of_what_an_unpublish_hook_would_end_ends_the_pod(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.registry.exchange(["disk"], ())
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert node.mounted == []


def test_repeated_unmount_succeeds(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.registry.exchange(["disk"], ())
    answers = [node.unmount(DRIVER, target) for _ in range(2)]
    assert answers == [{"status": "Success"}] * 2


def test_unmount_without_a_record_ends_what_lies_where_kubelet_mounts(node: Any) -> None:
    target = node.target(BELOW_KUBELET)
    mount("tmpfs", str(target), "tmpfs")
    node.registry.exchange(["disk"], ())
    assert node.unmount(DRIVER, target) == {"status": "Success"}
    assert node.mounted == []


@pytest.mark.parametrize("place", ["a", "0001/volumes/acme~other/data", f"{BELOW_KUBELET}/deep"])
def test_unmount_without_a_record_of_any_other_mount_is_refused(node: Any, place: str) -> None:
    target = node.target(place)
    mount("tmpfs", str(target), "tmpfs")
    node.registry.exchange(["disk"], ())
    answer = node.unmount(DRIVER, target)
    assert answer["status"] == "Failure"
    assert "no enabled plugin serves that driver" in answer["message"]
    assert node.mounted == [f"pods/{place}"]


def test_mount_needs_the_plugin(node: Any) -> None:
    node.registry.exchange(["disk"], ())
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert "no enabled plugin serves volume 'acme/disk'" in answer["message"]


def test_unmountdevice_needs_the_plugin(make_node: Any, attacher: Any) -> None:
    node = make_node(disk=attacher)
    device = node.target("device")
    node.call(DRIVER, "mountdevice", str(device), "/dev/x", json.dumps(OPTIONS))
    node.registry.exchange(["disk"], ())
    assert node.call(DRIVER, "unmountdevice", str(device))["status"] == "Failure"
    assert node.mounted == ["pods/device"]


def test_what_the_plugin_stages_stays_staged(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.registry.exchange(["disk"], ())
    node.unmount(DRIVER, target)
    assert len(node.mounted) == 1
    assert stager.calls == ["stage"]


def test_the_next_call_of_the_plugin_undoes_what_was_left(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)

    async def story() -> None:
        service = node.service()
        one, other = node.target("a"), node.target("b")
        await node.handle(service, DRIVER, "mount", str(one), json.dumps(OPTIONS))
        node.registry.exchange(["disk"], ())
        await node.handle(service, DRIVER, "unmount", str(one))
        node.registry.load("disk", publisher, "tests")
        await node.handle(service, DRIVER, "mount", str(other), json.dumps(OPTIONS | {"name": "other"}))

    asyncio.run(story())
    assert publisher.calls == ["publish data", "publish other", "unpublish data"]
    assert node.records == [f"target {node.target('b')}"]


def test_a_start_with_the_plugin_undoes_what_was_left(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.registry.exchange(["disk"], ())
    node.unmount(DRIVER, target)
    node.registry.load("disk", stager, "tests")
    node.recover()
    assert stager.calls == ["stage", "unstage"]
    assert (node.mounted, node.records) == ([], [])


def test_a_plugin_that_comes_after_a_start_undoes_what_was_left(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.registry.exchange(["disk"], ())
    node.unmount(DRIVER, target)

    async def story() -> None:
        service = node.service()
        await service.volumes.recover(node.registry)
        node.registry.load("disk", publisher, "tests")
        await node.handle(service, DRIVER, "init")

    asyncio.run(story())
    assert publisher.calls == ["publish data", "unpublish data"]
    assert node.records == []


def test_a_start_calls_the_unpublish_that_a_kill_left_out(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    ledger = node.service().volumes.ledger
    Records(ledger).write(replace(ledger.target(str(target)), phase=UNPUBLISHING))
    unmount(str(target))
    node.recover()
    assert publisher.calls == ["publish data", "unpublish data"]
    assert node.records == []


async def leave_something(node: Any, service: Any, publisher: Any) -> None:
    """Mount a volume, and unmount it while its plugin is away."""
    await node.handle(service, DRIVER, "mount", str(node.target("a")), json.dumps(OPTIONS))
    node.registry.exchange(["disk"], ())
    await node.handle(service, DRIVER, "unmount", str(node.target("a")))
    node.registry.load("disk", publisher, "tests")


def test_what_was_left_stays_known_while_another_daemon_is_about_to_take_over(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)

    async def story() -> None:
        service = node.service()
        await leave_something(node, service, publisher)
        service.volumes.hold()
        await service.volumes.undo_left(node.registry, DRIVER)
        assert publisher.calls == ["publish data"]
        service.volumes.release()
        await service.volumes.undo_left(node.registry, DRIVER)

    asyncio.run(story())
    assert publisher.calls == ["publish data", "unpublish data"]
    assert node.records == []


def test_a_call_waits_only_a_moment_for_what_others_have_left(
    make_node: Any, publisher: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volumes_service, "_MOMENT", 0.01)
    node, gate = make_node(disk=publisher), threading.Event()

    async def story() -> None:
        service = node.service()
        await leave_something(node, service, publisher)
        monkeypatch.setattr(publisher, "act_down", lambda _: gate.wait())
        await service.volumes.undo_left(node.registry, DRIVER)
        assert node.records != []
        gate.set()
        while node.records:
            await asyncio.sleep(0.001)

    asyncio.run(story())
