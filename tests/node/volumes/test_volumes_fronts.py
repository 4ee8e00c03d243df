"""Stage, publish, unpublish and unstage as requests of their own, for a front whose caller has a staging path."""

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    AlreadyExists,
    InProgress,
    InUse,
    PluginError,
    Secrets,
    TryAgain,
    Uncertain,
    VolumeClaim,
    VolumeId,
    VolumePublish,
    VolumeStage,
    hookimpl,
    mount,
    mounted_at,
    unmount,
)
from nodeplug.hosting.call import Call
from nodeplug.volumes.compose import Steps

pytestmark = pytest.mark.node
DRIVER, ID = "acme/disk", VolumeId("pvc-1")
ALONE, SHARED = "SINGLE_NODE_SINGLE_WRITER", "SINGLE_NODE_MULTI_WRITER"


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


def publish_staged_by_the_host(at: Path, **more: Any) -> Callable[[Steps], None]:
    wanted = VolumePublish(driver=DRIVER, volume_id=ID, target_path=str(at), **more)
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


@pytest.mark.parametrize(
    ("first", "again"),
    [
        ({}, {"read_only": True}),
        ({"read_only": True}, {}),
        ({"fs_type": "ext4"}, {"fs_type": "xfs"}),
        ({"access_mode": ALONE}, {"access_mode": SHARED}),
    ],
)
def test_a_repetition_that_asks_for_something_else_is_refused_and_the_mount_stays(
    node: Any, first: dict[str, Any], again: dict[str, Any]
) -> None:
    target = node.target("a")
    ask(node, publish_staged_by_the_host(target, **first))
    before = mounted_at(str(target))
    with pytest.raises(AlreadyExists, match=r"is mounted at .*/a' already, and now .* instead of .* is asked for"):
        ask(node, publish_staged_by_the_host(target, **again))
    assert mounted_at(str(target)) == before
    ask(node, publish_staged_by_the_host(target, **first))


def test_what_an_earlier_version_did_not_record_is_not_compared(node: Any) -> None:
    target = node.target("a")
    ask(node, publish_staged_by_the_host(target))
    ask(node, publish_staged_by_the_host(target, fs_type="ext4", access_mode="SINGLE_NODE_WRITER"))


@pytest.mark.parametrize("modes", [(ALONE, ALONE), (ALONE, SHARED), (SHARED, ALONE)])
def test_a_volume_for_one_pod_alone_is_refused_to_a_second_one(node: Any, modes: tuple[str, str]) -> None:
    one, two = node.target("a"), node.target("b")
    ask(node, publish_staged_by_the_host(one, access_mode=modes[0]))
    with pytest.raises(InUse, match=f"is for one pod alone .*, and '{one}' has it"):
        ask(node, publish_staged_by_the_host(two, access_mode=modes[1]))
    ask(node, publish_staged_by_the_host(one, access_mode=modes[0]))
    ask(node, unpublish(one), publish_staged_by_the_host(two, access_mode=modes[1]))
    assert [Path(path).name for path in node.mounted if "pods" in path] == ["b"]


def test_a_volume_that_pods_may_share_is_shared(node: Any) -> None:
    one, two = node.target("a"), node.target("b")
    ask(node, publish_staged_by_the_host(one, access_mode=SHARED), publish_staged_by_the_host(two, access_mode=SHARED))
    assert (one.is_mount(), two.is_mount()) == (True, True)


def test_a_failure_whose_undo_fails_leaves_the_outcome_uncertain(make_node: Any) -> None:
    """Callers take another error for final, and forget what was half made."""

    class Stuck:
        @hookimpl
        def claims(self) -> list[VolumeClaim]:
            return [VolumeClaim(DRIVER)]

        @hookimpl
        def volume_publish(self, request: VolumePublish) -> None:
            mount("tmpfs", request.target_path, "tmpfs", options=("size=1M",))
            self.held = (Path(request.target_path) / "in-use").open("w")
            raise PluginError("the disk is on fire")

    plugin = Stuck()
    node = make_node(disk=plugin)
    target = node.target("a")
    with pytest.raises(Uncertain, match=r"on fire; and what was half done could not be undone: .*in use"):
        ask(node, publish_staged_by_the_host(target))
    plugin.held.close()
    ask(node, unpublish(target))
    assert (node.mounted, node.records) == ([], [])


def test_a_front_says_how_long_its_caller_waits(node: Any, stager: Any) -> None:
    stager.pause = 2.0

    async def two() -> None:
        volumes, route = node.service().volumes, node.registry.route("volume", DRIVER)
        first = asyncio.create_task(
            volumes.run(route, Call("Node", "volume:x", whole=True), publish_staged_by_the_host(one))
        )
        async with asyncio.timeout(30):
            while not stager.calls:
                await asyncio.sleep(0.01)
        with pytest.raises(InProgress, match=r"an earlier call for .* is still running after 0\.05 s"):
            await volumes.run(
                route, Call("Node", "volume:x", whole=True), publish_staged_by_the_host(one), patience=0.05
            )
        await first

    one = node.target("a")
    asyncio.run(two())
    assert stager.calls == ["stage"]


def test_a_request_is_inside_until_its_work_has_ended_and_none_is_let_in_before_another_daemon(
    node: Any, stager: Any
) -> None:
    stager.pause = 1.0
    one = node.target("a")

    async def replaced() -> None:
        volumes, route = node.service().volumes, node.registry.route("volume", DRIVER)
        asked = Call("Node", "volume:x", whole=True)
        first = asyncio.create_task(volumes.run(route, asked, publish_staged_by_the_host(one)))
        async with asyncio.timeout(30):
            while not stager.calls:
                await asyncio.sleep(0.01)
        assert volumes.inside == (asked,)
        volumes.hold()
        with pytest.raises(TryAgain, match="another daemon takes over"):
            await volumes.run(route, Call("Node", "volume:x", whole=True), unpublish(one))
        await first
        assert volumes.inside == ()
        volumes.release()
        await volumes.run(route, Call("Node", "volume:x", whole=True), unpublish(one))

    asyncio.run(replaced())
    assert node.mounted == []
