"""Stage and publish, unpublish and unstage: real mounts, through the service as the scripts call it."""

import asyncio
import base64
import hashlib
import json
import os
from collections.abc import Sequence
from typing import Any

import pytest

from nodeplug import (
    Claim,
    NotSupported,
    PluginError,
    VolumeClaim,
    VolumePublish,
    VolumeStage,
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


def succeeded(answer: dict[str, Any]) -> bool:
    return bool(answer["status"] == "Success")


def test_mount_shows_the_staged_volume_to_the_pod(node: Any) -> None:
    target = node.target("a")
    assert node.mount(DRIVER, target, OPTIONS) == {"status": "Success"}
    (target / "x").write_text("kept")
    assert [path.read_text() for path in node.staging_folder.glob("*/*/x")] == ["kept"]


class OneFilesystem:
    """Stages one filesystem for every volume, as the kernel does with one export of one server."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self._first = ""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim(DRIVER)]

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        self.calls.append(f"stage {request.options['name']}")
        if self._first:
            bind(self._first, request.staging_path)
        else:
            mount("tmpfs", request.staging_path, "tmpfs")
            self._first = request.staging_path

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        self.calls.append("unstage")


def test_volumes_of_one_filesystem_are_no_users_of_each_other(make_node: Any) -> None:
    plugin = OneFilesystem()
    node = make_node(disk=plugin)
    one, two = node.target("one"), node.target("two")
    assert succeeded(node.mount(DRIVER, one, {"name": "one"}))
    assert succeeded(node.mount(DRIVER, two, {"name": "two"}))
    assert succeeded(node.unmount(DRIVER, one))
    assert plugin.calls == ["stage one", "stage two", "unstage"]
    assert mounted_at(str(two)) is not None
    assert succeeded(node.unmount(DRIVER, two))
    assert (node.mounted, node.records, list(node.staging_folder.glob("*/*"))) == ([], [], [])


def test_unmount_of_the_last_pod_leaves_no_mount_no_record_and_no_folder(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records, list(node.staging_folder.glob("*/*"))) == ([], [], [])
    assert stager.calls == ["stage", "unstage"]


def test_a_target_that_is_a_symlink_is_refused_and_nothing_is_mounted_behind_it(node: Any) -> None:
    elsewhere, target = node.target("elsewhere"), node.area / "pods" / "a"
    target.symlink_to(elsewhere)
    assert "is a symlink" in node.mount(DRIVER, target, OPTIONS)["message"]
    assert (node.mounted, node.records) == ([], [])


def test_two_pods_of_one_volume_share_one_staging(node: Any, stager: Any) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    node.mount(DRIVER, two, OPTIONS)
    (one / "x").write_text("shared")
    assert (two / "x").read_text() == "shared"
    assert stager.calls == ["stage"]


def test_a_second_pod_that_asks_for_another_filesystem_is_refused(node: Any, stager: Any) -> None:
    ext4, xfs, any_ = (OPTIONS | {"kubernetes.io/fsType": name} for name in ("ext4", "xfs", ""))
    assert succeeded(node.mount(DRIVER, node.target("a"), ext4))
    assert "is staged on this node as 'ext4'" in node.mount(DRIVER, node.target("b"), xfs)["message"]
    assert succeeded(node.mount(DRIVER, node.target("c"), ext4))
    assert succeeded(node.mount(DRIVER, node.target("d"), any_))
    assert [name for name in node.mounted if name.startswith("pods")] == ["pods/a", "pods/c", "pods/d"]
    assert stager.calls == ["stage"]


def test_two_pods_that_mount_at_once_stage_once(node: Any, stager: Any) -> None:
    stager.pause = 0.2
    targets = [node.target(name) for name in "abcd"]

    async def all_at_once() -> Any:
        service = node.service()
        return await asyncio.gather(
            *(node.handle(service, DRIVER, "mount", str(target), json.dumps(OPTIONS)) for target in targets)
        )

    assert all(succeeded(answer) for answer in asyncio.run(all_at_once()))
    assert stager.calls == ["stage"]


def test_the_first_of_two_unmounts_keeps_the_staging(node: Any, stager: Any) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    node.mount(DRIVER, two, OPTIONS)
    node.unmount(DRIVER, one)
    assert stager.calls == ["stage"]
    assert mounted_at(str(two)) is not None


def test_a_mount_of_the_administrators_own_keeps_no_volume_staged(node: Any, stager: Any) -> None:
    target, own = node.target("a"), node.area / "looked-at"
    node.mount(DRIVER, target, OPTIONS)
    own.mkdir()
    bind(str(target), str(own))
    assert succeeded(node.unmount(DRIVER, target))
    assert (stager.calls, node.mounted, node.records) == (["stage", "unstage"], ["looked-at"], [])


def test_a_pod_whose_record_is_lost_keeps_its_volume_staged(node: Any, stager: Any) -> None:
    target, other = node.target("a"), node.target("uid-b/volumes/acme~disk/data")
    node.mount(DRIVER, target, OPTIONS)
    node.mount(DRIVER, other, OPTIONS)
    node.journal.remove(f"target {other}")
    assert succeeded(node.unmount(DRIVER, target))
    assert (stager.calls, mounted_at(str(other)) is not None) == (["stage"], True)
    assert succeeded(node.unmount(DRIVER, other))
    assert (stager.calls, node.mounted, node.records) == (["stage", "unstage"], [], [])


@pytest.mark.parametrize("fail", ["", "stage"])
def test_a_volume_that_lost_its_staging_mount_is_staged_again_and_never_undone_while_a_pod_has_it(
    node: Any, stager: Any, fail: str
) -> None:
    one, two = node.target("a"), node.target("b")
    node.mount(DRIVER, one, OPTIONS)
    (one / "x").write_text("kept")
    (staged,) = node.staging_folder.glob("*/*")
    unmount(str(staged))
    stager.fail = fail
    assert succeeded(node.mount(DRIVER, two, OPTIONS)) is not bool(fail)
    assert stager.calls == ["stage", "stage"]
    assert (one / "x").read_text() == "kept"


def test_a_second_volume_is_staged_on_its_own(node: Any, stager: Any) -> None:
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


def test_a_stage_that_fails_after_mounting_leaves_nothing_behind(node: Any, stager: Any) -> None:
    stager.fail = "stage"
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert answer["message"].startswith("the disk is on fire")
    assert (node.mounted, node.records) == ([], [])


def test_a_publish_that_fails_after_mounting_leaves_nothing_mounted(make_node: Any, publisher: Any) -> None:

    def fail(_: VolumePublish) -> None:
        raise PluginError("half done")

    publisher.act = fail
    node = make_node(disk=publisher)
    assert node.mount(DRIVER, node.target("a"), OPTIONS)["status"] == "Failure"
    assert (node.mounted, node.records) == ([], [])


def test_a_publish_that_mounts_nothing_is_a_failure(make_node: Any, publisher: Any) -> None:
    publisher.mounts = False
    node = make_node(disk=publisher)
    answer = node.mount(DRIVER, node.target("a"), OPTIONS)
    assert answer["status"] == "Failure"
    assert "node's own disk" in answer["message"]


def test_a_publish_that_ignores_read_only_is_a_failure_and_undone(make_node: Any, publisher: Any) -> None:
    publisher.mounts = False
    publisher.act = lambda request: mount("tmpfs", request.target_path, "tmpfs")
    node = make_node(disk=publisher)
    answer = node.mount(DRIVER, node.target("a"), READ_ONLY)
    assert "read-only was asked for" in answer["message"]
    assert node.mounted == []


def test_what_the_plugins_unpublish_leaves_mounted_is_unmounted(make_node: Any, publisher: Any) -> None:
    node = make_node(disk=publisher)
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    node.unmount(DRIVER, target)
    assert publisher.calls == ["publish data", "unpublish data"]
    assert node.mounted == []


def test_not_supported_out_of_a_hook_is_told_as_failure(make_node: Any, publisher: Any) -> None:

    def refuse(_: VolumePublish) -> None:
        raise NotSupported("not with this option")

    publisher.act = refuse
    node = make_node(disk=publisher)
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


def with_secret(value: bytes) -> dict[str, str]:
    return OPTIONS | {"kubernetes.io/secret/password": base64.b64encode(value).decode()}


def test_pods_with_different_secrets_share_nothing(node: Any, stager: Any) -> None:
    one, two = node.target("a"), node.target("b")
    assert succeeded(node.mount(DRIVER, one, with_secret(b"mine")))
    assert succeeded(node.mount(DRIVER, two, with_secret(b"yours")))
    (one / "x").write_text("private")
    assert not (two / "x").exists()
    assert stager.calls == ["stage", "stage"]


def test_a_pod_without_the_secret_does_not_get_the_volume_of_one_that_has_it(node: Any) -> None:
    one, two = node.target("a"), node.target("b")
    assert succeeded(node.mount(DRIVER, one, with_secret(b"mine")))
    (one / "x").write_text("private")
    assert succeeded(node.mount(DRIVER, two, OPTIONS))
    assert not (two / "x").exists()


def test_pods_with_the_same_secret_share_one_staging(node: Any, stager: Any) -> None:
    for name in "ab":
        assert succeeded(node.mount(DRIVER, node.target(name), with_secret(b"ours")))
    assert stager.calls == ["stage"]


def test_a_repeated_mount_after_the_secret_was_rotated_keeps_what_is_mounted(node: Any, stager: Any) -> None:
    target = node.target("a")
    assert succeeded(node.mount(DRIVER, target, with_secret(b"old")))
    assert succeeded(node.mount(DRIVER, target, with_secret(b"new")))
    assert stager.calls == ["stage"]
    assert succeeded(node.unmount(DRIVER, target))
    assert (node.mounted, node.records) == ([], [])


def test_no_record_or_path_holds_a_plain_digest_of_a_secret(node: Any) -> None:
    assert succeeded(node.mount(DRIVER, node.target("a"), with_secret(b"mine")))
    plain = {hashlib.new(name, b"mine").hexdigest()[:16] for name in ("md5", "sha1", "sha256", "sha512")}
    texts = [str(path) for path in node.staging_folder.rglob("*")] + [str(record) for record in node.records]
    assert not any(digest in text for digest in plain for text in texts)
