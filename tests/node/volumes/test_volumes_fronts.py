"""Stage, publish, unpublish and unstage as requests of their own, for a front whose caller has a staging path."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    PluginError,
    Secrets,
    VolumeId,
    VolumePublish,
    VolumeStage,
    mounted_at,
    unmount,
)
from nodeplug.hosting.call import Call
from nodeplug.volumes.compose import Steps

pytestmark = pytest.mark.node
DRIVER, ID = "acme/disk", VolumeId("pvc-1")


def ask(node: Any, *requests: Callable[[Steps], None]) -> None:
    """Make requests of one service after each other, as a front does."""

    async def all_of_them() -> None:
        volumes = node.service().volumes
        for request in requests:
            route = node.registry.route("volume", DRIVER)
            await volumes.run(route, Call("Node", f"volume:{DRIVER}", whole=True), request)

    asyncio.run(all_of_them())


def stage(at: Path) -> Callable[[Steps], None]:
    return lambda steps: steps.stage(VolumeStage(driver=DRIVER, volume_id=ID, staging_path=str(at)))


def publish(at: Path, staged_at: Path, **more: Any) -> Callable[[Steps], None]:
    wanted = VolumePublish(driver=DRIVER, volume_id=ID, target_path=str(at), staging_path=str(staged_at), **more)
    return lambda steps: steps.publish(wanted, None)


def publish_staged_by_the_host(at: Path) -> Callable[[Steps], None]:
    wanted = VolumePublish(driver=DRIVER, volume_id=ID, target_path=str(at))
    return lambda steps: steps.publish(wanted, VolumeStage(driver=DRIVER, volume_id=ID, staging_path=""))


def unpublish(at: Path) -> Callable[[Steps], None]:
    return lambda steps: steps.unpublish(str(at))


def unstage(at: Path) -> Callable[[Steps], None]:
    return lambda steps: steps.unstage(str(at))


def test_the_last_unpublish_keeps_what_its_caller_staged(node: Any, stager: Any) -> None:
    shared, one, two = node.target("globalmount"), node.target("a"), node.target("b")
    ask(node, stage(shared), publish(one, shared), publish(two, shared))
    (one / "x").write_text("shared")
    assert (two / "x").read_text() == "shared"
    ask(node, unpublish(one), unpublish(two))
    assert node.mounted == ["pods/globalmount"]
    ask(node, unstage(shared))
    assert (node.mounted, node.records, shared.is_dir()) == ([], [], True)
    assert stager.calls == ["stage", "unstage"]


def test_each_of_the_four_may_be_repeated(node: Any, stager: Any) -> None:
    shared, target = node.target("globalmount"), node.target("a")
    for request in (stage(shared), publish(target, shared), unpublish(target), unstage(shared)):
        ask(node, *[request] * 3)
    assert (node.mounted, node.records) == ([], [])
    assert stager.calls == ["stage", "unstage", "unstage", "unstage"]


def test_a_pod_may_read_alone_what_another_writes(node: Any) -> None:
    shared, reader, writer = node.target("globalmount"), node.target("a"), node.target("b")
    ask(node, stage(shared), publish(reader, shared, read_only=True), publish(writer, shared))
    (writer / "x").write_text("y")
    with pytest.raises(OSError, match="Read-only file system"):
        (reader / "z").write_text("y")


def test_a_publish_of_what_its_caller_has_not_staged_fails_and_mounts_nothing(node: Any) -> None:
    shared, target = node.target("globalmount"), node.target("a")
    with pytest.raises(PluginError, match="is not staged"):
        ask(node, publish(target, shared))
    assert (node.mounted, node.records) == ([], [])


def test_a_front_without_a_staging_path_shares_what_another_front_staged_in_the_hosts_folder(
    node: Any, stager: Any
) -> None:
    one, two = node.target("a"), node.target("b")
    ask(node, publish_staged_by_the_host(one), publish_staged_by_the_host(two), unpublish(one))
    assert stager.calls == ["stage"]
    ask(node, unpublish(two))
    assert (node.mounted, stager.calls) == ([], ["stage", "unstage"])


def test_all_of_a_request_happens_in_one_thread(node: Any, stager: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    del stager
    import threading  # noqa: PLC0415 - only here

    started: list[str] = []
    begin = threading.Thread.start

    def counted(thread: threading.Thread) -> None:
        started.append(thread.name)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", counted)
    ask(node, publish_staged_by_the_host(node.target("a")))
    kinds = sorted(name.partition(":")[0] for name in started)
    assert kinds == ["beside", "volume"]


def test_a_volume_is_named_by_its_options_and_its_secrets_when_the_driver_stages(node: Any) -> None:
    named: list[VolumeId] = []
    ask(
        node,
        lambda steps: named.append(steps.identify({"name": "data"}, Secrets())),
        lambda steps: named.append(steps.identify({"name": "data"}, Secrets({"password": b"mine"}))),
        lambda steps: named.append(steps.identify({"name": "data"}, Secrets({"password": b"yours"}))),
    )
    assert len(set(named)) == 3
    assert len({name.partition("+")[0] for name in named}) == 1


def test_a_volume_whose_staging_mount_has_gone_is_not_published(make_node: Any, attacher: Any) -> None:
    node = make_node(disk=attacher)
    device, target = node.target("device"), node.target("a")
    options = '{"name": "data"}'
    assert node.call(DRIVER, "mountdevice", str(device), "/dev/x", options)["status"] == "Success"
    unmount(str(device))
    answer = node.call(DRIVER, "mount", str(target), options)
    assert answer["status"] == "Failure"
    assert "is not staged" in answer["message"]
    assert mounted_at(str(target)) is None
