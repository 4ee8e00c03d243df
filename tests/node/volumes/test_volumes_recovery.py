"""Records that are lost, damaged or old, and starts after a kill: mountinfo decides."""

import json
from typing import Any

import pytest

from nodeplug import (
    bind,
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


def test_unmount_with_a_lost_journal_unstages_what_mountinfo_shows(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    for path in node.journal.folder.iterdir():
        path.unlink()
    assert succeeded(node.unmount(DRIVER, target))
    assert node.mounted == []
    assert stager.calls == ["stage", "unstage"]


def test_unmount_with_a_lost_journal_keeps_the_staging_of_another_pod(node: Any, stager: Any) -> None:
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


def test_a_repeated_mount_with_a_lost_journal_keeps_the_mount(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    before = node.mounted
    for path in node.journal.folder.iterdir():
        path.unlink()
    assert succeeded(node.mount(DRIVER, target, OPTIONS))
    assert (node.mounted, stager.calls) == (before, ["stage"])


def test_records_of_another_boot_are_cleaned_and_do_not_hinder_a_mount(node: Any, stager: Any) -> None:
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


def test_recover_unstages_what_no_pod_uses(node: Any, stager: Any) -> None:
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    unmount(str(target))
    node.recover()
    assert (node.mounted, node.records) == ([], [])
    assert stager.calls == ["stage", "unstage"]


def test_recover_keeps_what_a_pod_uses(node: Any, stager: Any) -> None:
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


def test_a_half_made_staging_is_made_anew(node: Any, stager: Any) -> None:
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
