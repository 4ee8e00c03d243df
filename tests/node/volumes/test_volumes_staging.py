"""Stage and publish, unpublish and unstage: real mounts, through the service as the entrypoint script calls it."""

import asyncio
import base64
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from nodeplug import (
    Claim,
    NotSupported,
    PluginError,
    VolumeId,
    VolumePublish,
    VolumeStage,
    VolumeUnpublish,
    VolumeUnstage,
    bind,
    hookimpl,
    mount,
    mounted_at,
    unmount,
)

pytestmark = pytest.mark.node
DRIVER = "acme/disk"
OPTIONS = {"name": "data", "kubernetes.io/readwrite": "rw"}
READ_ONLY = OPTIONS | {"kubernetes.io/readwrite": "ro"}


class Stager:
    """Stages a tmpfs and leaves everything else to the host's defaults."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail = ""
        self.pause = 0.0

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [Claim("volume", DRIVER)]

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        self.calls.append("stage")
        time.sleep(self.pause)
        mount("tmpfs", request.staging_path, "tmpfs", options=("size=1M",))
        if self.fail == "stage":
            raise PluginError("the disk is on fire")

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        self.calls.append("unstage")


class Publisher:
    """Publishes a tmpfs for each pod, without staging."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.act: Callable[[VolumePublish], None] = lambda _: None
        self.mounts = True

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [Claim("volume", DRIVER)]

    @hookimpl
    def volume_id(self, options: dict[str, str]) -> VolumeId:
        return VolumeId(options["name"])

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        self.calls.append(f"publish {request.volume_id}")
        if self.mounts:
            mount("tmpfs", request.target_path, "tmpfs", read_only=request.read_only)
        self.act(request)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        self.calls.append(f"unpublish {request.volume_id}")


class Attacher(Stager):
    """A driver with attach: kubelet stages in its own directory."""

    @hookimpl
    def volume_attach(self, request: Any) -> str:
        return f"/dev/disk/{request.options['name']}"

    @hookimpl
    def volume_detach(self, request: Any) -> None:
        self.calls.append(f"detach {request.volume_id} {request.node}")


@pytest.fixture
def stager() -> Stager:
    return Stager()


@pytest.fixture
def node(make_node: Any, stager: Stager) -> Any:
    return make_node(disk=stager)


def succeeded(answer: dict[str, Any]) -> bool:
    return bool(answer["status"] == "Success")


def test_mount_shows_the_staged_volume_to_the_pod(node: Any) -> None:
    target = node.target("a")
    assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
    (target / "x").write_text("kept")
    assert [path.read_text() for path in node.staging_folder.glob("*/*/x")] == ["kept"]


def test_unmount_of_the_last_pod_leaves_no_mount_no_record_and_no_folder(node: Any, stager: Stager) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records, list(node.staging_folder.glob("*/*"))) == ([], [], [])
    assert stager.calls == ["stage", "unstage"]


def test_two_pods_of_one_volume_share_one_staging(node: Any, stager: Stager) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    node.mount(DRIVER, two, OPTIONS)
    (one / "x").write_text("shared")
    assert (two / "x").read_text() == "shared"
    assert stager.calls == ["stage"]


def test_two_pods_that_mount_at_once_stage_once(node: Any, stager: Stager) -> None:
    stager.pause = 0.2
    targets = [node.target(name) for name in "abcd"]

    async def all_at_once() -> Any:
        service = node.service()
        return await asyncio.gather(
            *(node.handle(service, DRIVER, "mount", str(target), json.dumps(OPTIONS)) for target in targets)
        )

    assert all(succeeded(answer) for answer in asyncio.run(all_at_once()))
    assert stager.calls == ["stage"]


def test_the_first_of_two_unmounts_keeps_the_staging(node: Any, stager: Stager) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    node.mount(DRIVER, two, OPTIONS)
    node.unmount(DRIVER, one)
    assert stager.calls == ["stage"]
    assert mounted_at(str(two)) is not None


def test_a_second_volume_is_staged_on_its_own(node: Any, stager: Stager) -> None:
    node.mount(DRIVER, node.target("a"), OPTIONS)
    node.mount(DRIVER, node.target("b"), OPTIONS | {"name": "other"})
    assert stager.calls == ["stage", "stage"]


def test_a_repeated_mount_succeeds_without_a_second_mount(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    before = node.mounted
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert node.mounted == before


def test_a_repeated_unmount_succeeds(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    assert [succeeded(node.unmount(DRIVER, target)) for _ in range(3)] == [True] * 3


def test_unmount_of_something_never_mounted_succeeds(node: Any) -> None:
    assert succeeded(node.unmount(DRIVER, node.target("a")))


def test_mount_and_unmount_repeat_without_residue(node: Any) -> None:
    target = node.target("a")
    for _ in range(5):
        assert succeeded(node.mount(DRIVER, target, OPTIONS))
        assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records) == ([], [])


def test_a_read_only_pod_cannot_write_and_a_writable_one_beside_it_can(node: Any) -> None:
    reader, writer = node.target("a"), node.target("b")
    node.mount(DRIVER, reader, READ_ONLY)
    node.mount(DRIVER, writer, OPTIONS)
    (writer / "x").write_text("y")
    with pytest.raises(OSError, match="Read-only file system"):
        (reader / "z").write_text("y")


def test_another_volume_at_a_mounted_target_is_refused(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    answer = node.mount(DRIVER, target, OPTIONS | {"name": "other"})
    assert answer["status"] == "Failure"
    assert "unmount it before" in answer["message"]


def test_a_stage_that_fails_after_mounting_leaves_nothing_behind(node: Any, stager: Stager) -> None:
    stager.fail = "stage"
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert answer["message"].startswith("the disk is on fire")
    assert (node.mounted, node.records) == ([], [])


def test_a_publish_that_fails_after_mounting_leaves_nothing_mounted(make_node: Any) -> None:
    plugin = Publisher()

    def fail(_: VolumePublish) -> None:
        raise PluginError("half done")

    plugin.act = fail
    node = make_node(disk=plugin)
    assert node.mount(DRIVER, node.target("a"), OPTIONS)["status"] == "Failure"
    assert (node.mounted, node.records) == ([], [])


def test_a_publish_that_mounts_nothing_is_a_failure(make_node: Any) -> None:
    plugin = Publisher()
    plugin.mounts = False
    node = make_node(disk=plugin)
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert "node's own disk" in answer["message"]


def test_a_publish_that_ignores_read_only_is_a_failure_and_undone(make_node: Any) -> None:
    plugin = Publisher()
    plugin.mounts = False
    plugin.act = lambda request: mount("tmpfs", request.target_path, "tmpfs")
    node = make_node(disk=plugin)
    answer = node.mount(DRIVER, node.target("a"), READ_ONLY)
    assert "read-only was asked for" in answer["message"]
    assert node.mounted == []


def test_what_the_plugins_unpublish_leaves_mounted_is_unmounted(make_node: Any) -> None:
    plugin = Publisher()
    node = make_node(disk=plugin)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    assert plugin.calls == ["publish data", "unpublish data"]
    assert node.mounted == []


def test_not_supported_out_of_a_hook_is_told_as_failure(make_node: Any) -> None:
    plugin = Publisher()

    def refuse(_: VolumePublish) -> None:
        raise NotSupported("not with this option")

    plugin.act = refuse
    node = make_node(disk=plugin)
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert "not with this option" in answer["message"]


def test_a_busy_unmount_fails_says_so_and_succeeds_later(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    descriptor = os.open(target, os.O_RDONLY)
    try:
        answer = node.unmount(DRIVER, target)
    finally:
        os.close(descriptor)
    assert answer["status"] == "Failure"
    assert "in use" in answer["message"]
    assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records) == ([], [])


def test_unmount_with_a_lost_journal_unstages_what_mountinfo_shows(node: Any, stager: Stager) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    for path in node.journal.folder.iterdir():
        path.unlink()
    assert succeeded(node.unmount(DRIVER, target))
    assert node.mounted == []
    assert stager.calls == ["stage", "unstage"]


def test_unmount_with_a_lost_journal_keeps_the_staging_of_another_pod(node: Any, stager: Stager) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    node.mount(DRIVER, two, OPTIONS)
    for path in node.journal.folder.iterdir():
        path.unlink()
    assert succeeded(node.unmount(DRIVER, one))
    assert stager.calls == ["stage"]
    assert mounted_at(str(two)) is not None


def test_another_volumes_tmpfs_is_not_taken_for_a_user_without_a_journal(node: Any) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    node.mount(DRIVER, two, OPTIONS | {"name": "other"})
    for path in node.journal.folder.iterdir():
        path.unlink()
    node.unmount(DRIVER, one)
    assert len(node.mounted) == 2
    assert mounted_at(str(two)) is not None


def test_a_journal_file_cut_in_half_does_not_stop_an_unmount(node: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    for path in node.journal.folder.glob("*.json"):
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records) == ([], [])


def test_a_repeated_mount_with_a_lost_journal_keeps_the_mount(node: Any, stager: Stager) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    before = node.mounted
    for path in node.journal.folder.iterdir():
        path.unlink()
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert (node.mounted, stager.calls) == (before, ["stage"])


def test_records_of_another_boot_are_cleaned_and_do_not_hinder_a_mount(node: Any, stager: Stager) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    for path in reversed(node.mounted):
        unmount(str(node.area / path))
    for path in node.journal.folder.glob("*.json"):
        document = json.loads(path.read_text())
        path.write_text(json.dumps(document | {"boot_id": "another"}))
    node.recover()
    assert node.records == []
    assert succeeded(node.mount(DRIVER, target, OPTIONS))


def test_recover_unstages_what_no_pod_uses(node: Any, stager: Stager) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    unmount(str(target))
    node.recover()
    assert (node.mounted, node.records) == ([], [])
    assert stager.calls == ["stage", "unstage"]


def test_recover_keeps_what_a_pod_uses(node: Any, stager: Stager) -> None:
    node.mount(DRIVER, node.target("a"), OPTIONS)
    before = node.mounted
    node.recover()
    assert (node.mounted, stager.calls) == (before, ["stage"])


def test_recover_unstages_a_stray_mount_without_records(node: Any) -> None:
    node.mount(DRIVER, node.target("a"), OPTIONS)
    unmount(str(node.target("a")))
    for path in node.journal.folder.iterdir():
        path.unlink()
    node.recover()
    assert node.mounted == []


def test_recover_leaves_volumes_of_a_driver_that_is_not_loaded(node: Any, make_node: Any) -> None:
    node.mount(DRIVER, node.target("a"), OPTIONS)
    unmount(str(node.target("a")))
    before = node.mounted
    make_node().recover()
    assert node.mounted == before


def test_a_half_made_staging_is_made_anew(node: Any, stager: Stager) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    unmount(str(target))
    record = next(entry for entry in node.journal.entries() if entry.key.startswith("volume "))
    node.journal.write(record.key, phase="staging", data=record.data)
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert stager.calls == ["stage", "unstage", "stage"]
    assert len(node.mounted) == 2


def test_a_half_made_mount_at_the_target_is_replaced(node: Any) -> None:
    target, other = node.target("a"), node.target("b")
    node.mount(DRIVER, other, OPTIONS)
    (other / "x").write_text("kept")
    node.mount(DRIVER, target, OPTIONS)
    record = next(entry for entry in node.journal.entries() if entry.data.get("path") == str(target))
    node.journal.write(record.key, phase="publishing", data=record.data)
    unmount(str(target))
    mount("tmpfs", str(target), "tmpfs")
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert (target / "x").read_text() == "kept"
    assert len(node.mounted) == 3


def test_recover_removes_a_half_made_mount_that_is_not_read_only_yet(node: Any) -> None:
    reader, writer = node.target("a"), node.target("b")
    node.mount(DRIVER, writer, OPTIONS)
    node.mount(DRIVER, reader, READ_ONLY)
    record = next(entry for entry in node.journal.entries() if entry.data.get("path") == str(reader))
    node.journal.write(record.key, phase="publishing", data=record.data)
    unmount(str(reader))
    bind(str(writer), str(reader))
    node.recover()
    assert mounted_at(str(reader)) is None
    assert mounted_at(str(writer)) is not None


def test_a_failed_mount_with_a_full_journal_disk_leaves_nothing_mounted(node: Any) -> None:
    node.journal.folder.mkdir()
    mount("tmpfs", str(node.journal.folder), "tmpfs", options=("size=16k",))
    filler = node.journal.folder / "filler"
    with pytest.raises(OSError, match="No space"):
        filler.write_bytes(b"x" * 65536)
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert node.mounted == ["journal"]


def test_an_unmount_succeeds_although_the_journal_disk_is_full(node: Any) -> None:
    node.journal.folder.mkdir()
    mount("tmpfs", str(node.journal.folder), "tmpfs", options=("size=64k",))
    target = node.target("a")
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    with pytest.raises(OSError, match="No space"):
        (node.journal.folder / "filler").write_bytes(b"x" * 131072)
    assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records) == (["journal"], [])


def test_an_overdue_publish_is_answered_and_completed_when_it_ends(make_node: Any) -> None:
    plugin = Publisher()
    plugin.act = lambda _: time.sleep(0.4)
    node = make_node({"disk": {"volume_publish": 0.1}}, disk=plugin)
    target = node.target("a")

    async def mount_twice() -> list[dict[str, Any]]:
        service = node.service()
        argv = ("mount", str(target), json.dumps(OPTIONS))
        return [await node.handle(service, DRIVER, *argv) for _ in range(2)]

    first, second = asyncio.run(mount_twice())
    assert (first["status"], second["status"]) == ("Failure", "Success")
    assert plugin.calls == ["publish data"]


def test_an_overdue_publish_that_fails_late_leaves_nothing_mounted(make_node: Any) -> None:
    plugin = Publisher()

    def fail_late(_: VolumePublish) -> None:
        time.sleep(0.3)
        raise PluginError("too late")

    plugin.act = fail_late
    node = make_node({"disk": {"volume_publish": 0.1}}, disk=plugin)
    target = node.target("a")

    async def mount_then_unmount() -> list[str]:
        service = node.service()
        answer = await node.handle(service, DRIVER, "mount", str(target), json.dumps(OPTIONS))
        assert answer["status"] == "Failure"
        await node.handle(service, DRIVER, "unmount", str(target))  # waits for the work in progress
        return list(plugin.calls)

    assert asyncio.run(mount_then_unmount()) == ["publish data", "unpublish data"]
    assert (node.mounted, node.records) == ([], [])


def test_a_caller_that_goes_away_does_not_stop_a_mount_half_way(node: Any, stager: Stager) -> None:
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
def leaky(make_node: Any, caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    """A node whose plugin puts its secret into an error."""
    plugin = Publisher()

    def leak(request: VolumePublish) -> None:
        raise PluginError(f"login with {request.secrets['password'].decode()} was refused")

    plugin.act = leak
    with caplog.at_level(logging.DEBUG):
        yield make_node(disk=plugin)


def test_a_secret_in_a_plugins_error_reaches_neither_kubelet_nor_the_log(
    leaky: Any, caplog: pytest.LogCaptureFixture
) -> None:
    options = OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(SECRET).decode()}
    answer = leaky.mount(DRIVER, leaky.target("a"), options)
    assert "login with *** was refused" in answer["message"]
    assert SECRET.decode() not in caplog.text


def test_each_failure_is_logged_once_with_its_request_id(leaky: Any, caplog: pytest.LogCaptureFixture) -> None:
    options = OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(SECRET).decode()}
    answer = leaky.mount(DRIVER, leaky.target("a"), options)
    lines = [record.getMessage() for record in caplog.records if "was refused" in record.getMessage()]
    assert len(lines) == 1
    request = answer["message"].rpartition("(request ")[2].rstrip(")")
    assert f"(request {request})" in lines[0]


def test_no_secret_and_no_option_is_written_to_the_journal(make_node: Any) -> None:
    node = make_node(disk=Publisher())
    encoded = base64.b64encode(SECRET).decode()
    node.mount(DRIVER, node.target("a"), OPTIONS | {"kubernetes.io/secret/password": encoded, "login": "opt-value"})
    text = b"".join(path.read_bytes() for path in node.journal.folder.iterdir())
    assert text
    assert not any(word in text for word in (SECRET, encoded.encode(), b"opt-value"))


def test_a_driver_with_attach_is_staged_by_mountdevice_and_bound_by_mount(make_node: Any) -> None:
    plugin = Attacher()
    node = make_node(disk=plugin)
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
    assert plugin.calls == ["stage", "unstage", "detach pv-1 node-1"]


def test_a_failed_mountdevice_leaves_nothing_mounted(make_node: Any) -> None:
    plugin = Attacher()
    plugin.fail = "stage"
    node = make_node(disk=plugin)
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
