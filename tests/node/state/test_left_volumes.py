"""Volumes that an earlier version mounted: pods keep them, their end takes them away, half a mount is undone."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.node.state.conftest import pod_of
from tests.node.state.tree import entries

from nodeplug import mounted_at, unmount
from nodeplug.testing import FlexVolume
from nodeplug.testing.waiting import until
from nodeplug_volumes import loopdev

HOSTDIR = "nodeplug/hostdir"
LOOPFILE, SHARE, DISK = "nodeplug/loopfile", "example.com/share", "example.com/disk"
PUBLISHED = [
    (LOOPFILE, "pod-a", "data"),
    (LOOPFILE, "pod-b", "data"),
    ("nodeplug/tmpfs", "pod-a", "scratch"),
    (HOSTDIR, "pod-b", "logs"),
    (SHARE, "pod-c", "share"),
    (SHARE, "pod-e", "ending"),
    (DISK, "pod-c", "disk"),
]
HALF = FlexVolume("half", {"host": "slow"})


def target(left: Any, driver: str, uid: str, name: str) -> Path:
    found: Path = left.caller(driver).target(pod_of(uid), name)
    return found


def mount_of(path: Path) -> str:
    """Return the kernel's number of the mount at a path (proc(5), fdinfo)."""
    descriptor = os.open(path, os.O_PATH)
    try:
        text = Path(f"/proc/self/fdinfo/{descriptor}").read_text()
    finally:
        os.close(descriptor)
    (found,) = [line for line in text.splitlines() if line.startswith("mnt_id:")]
    return found


def end_every_pod(left: Any) -> None:
    for driver, uid, name in PUBLISHED:
        left.caller(driver).unmount(pod_of(uid), name)
    left.caller(DISK).detach("disk")


def staged(left: Any, driver: str) -> list[str]:
    """Name what is mounted in nodeplug's folder for a driver."""
    folder = f"run/nodeplug/staging/{driver.replace('/', '%2F').replace('.', '%2E')}/"
    return [one for one in left.mounted() if one.startswith(folder)]


def test_published_volumes_stay_as_they_are(volumes: Any) -> None:
    before = volumes.mounted()
    (target(volumes, LOOPFILE, "pod-a", "data") / "file").write_text("written before")
    volumes.node.start()
    assert volumes.mounted() == before
    second = target(volumes, LOOPFILE, "pod-b", "data")
    assert (second / "file").read_text() == "written before"
    assert mounted_at(str(second)).read_only  # type: ignore[union-attr] # it is mounted
    status = volumes.told()
    assert status["ready"], status["reasons"]
    told = {path for one in status["volumes"] for path in one["targets"]}
    assert told == {str(target(volumes, *one)) for one in PUBLISHED}


@pytest.mark.whole
def test_unmount_takes_one_pods_mount_and_leaves_the_volume_to_the_other(volumes: Any) -> None:
    volumes.node.start()
    volumes.caller(LOOPFILE).unmount(pod_of("pod-a"), "data")
    assert mounted_at(str(target(volumes, LOOPFILE, "pod-a", "data"))) is None
    assert mounted_at(str(target(volumes, LOOPFILE, "pod-b", "data"))) is not None
    assert len(staged(volumes, LOOPFILE)) == 1


def test_the_last_user_unstages(volumes: Any) -> None:
    (image,) = {Path(one["from"]) for one in volumes.kernel["mounts"] if one["kind"] == "ext4"}
    volumes.node.start()
    for uid in ("pod-b", "pod-a"):
        volumes.caller(LOOPFILE).unmount(pod_of(uid), "data")
    assert staged(volumes, LOOPFILE) == []
    assert [key for key in volumes.records() if "loopfile" in key] == []
    until(lambda: not loopdev.find(image))
    assert image.exists()


@pytest.mark.whole
def test_the_ledger_is_empty_when_every_pod_has_ended(volumes: Any) -> None:
    volumes.node.start()
    end_every_pod(volumes)
    assert (volumes.mounted(), volumes.records()) == ([], [])
    assert entries(volumes.node.paths.run / "staging") == []
    assert entries(volumes.journal / "flexvolume") == ["secret-mark.key"]
    assert volumes.told()["volumes"] == []


def test_a_mount_that_was_only_intended_is_undone(volumes: Any) -> None:
    assert [key for key in volumes.records() if key.endswith("/half")] != []
    begun = [json.loads(path.read_text()) for path in (volumes.journal / "flexvolume").glob("volume*.json")]
    (half,) = [Path(one["data"]["staging_path"]) for one in begun if one["phase"] == "staging"]
    assert half.is_dir()
    volumes.node.start()
    assert [key for key in volumes.records() if key.endswith("/half")] == []
    assert not half.exists()
    assert len(staged(volumes, SHARE)) == 2


@pytest.mark.whole
def test_a_mount_that_was_only_intended_succeeds_when_kubelet_repeats_it(volumes: Any) -> None:
    volumes.node.start()
    caller = volumes.caller(SHARE)
    (caller.mount(pod_of("pod-d"), HALF) / "file").write_text("written")
    assert len(staged(volumes, SHARE)) == 3
    caller.unmount(pod_of("pod-d"), "half")
    assert len(staged(volumes, SHARE)) == 2


def test_an_unmount_that_was_only_intended_is_finished_when_kubelet_repeats_it(volumes: Any) -> None:
    ending = target(volumes, SHARE, "pod-e", "ending")
    volumes.node.start()
    volumes.caller(SHARE).unmount(pod_of("pod-e"), "ending")
    assert mounted_at(str(ending)) is None
    assert [key for key in volumes.records() if key.endswith("/ending")] == []
    assert len(staged(volumes, SHARE)) == 1


@pytest.mark.whole
def test_the_plugin_is_told_again_to_release_what_was_unmounted_without_its_answer(volumes: Any) -> None:
    ending = str(target(volumes, SHARE, "pod-e", "ending"))
    unmount(ending)
    volumes.node.start()
    assert ending in (volumes.root / "srv/released").read_text()
    assert [key for key in volumes.records() if key.endswith("/ending")] == []
    assert len(staged(volumes, SHARE)) == 1


def test_a_volume_that_kubelet_attached_ends_step_by_step(volumes: Any) -> None:
    volumes.node.start()
    caller = volumes.caller(DISK)
    place = str(caller.device_target("disk"))
    caller.unmount(pod_of("pod-c"), "disk")
    assert mounted_at(place) is not None
    caller.detach("disk")
    assert mounted_at(place) is None
    assert [key for key in volumes.records() if "example.com/disk" in key] == []


@pytest.mark.whole
def test_a_second_pod_gets_the_volume_that_kubelet_attached(volumes: Any) -> None:
    volumes.node.start()
    caller = volumes.caller(DISK)
    first = caller.target(pod_of("pod-c"), "disk")
    second = caller.mount(pod_of("pod-f"), FlexVolume("disk", {"name": "disk-1"}))
    (first / "file").write_text("shared")
    assert (second / "file").read_text() == "shared"
    assert caller.calls[-1][0] == "mount"


def test_a_pod_with_the_same_secret_shares_what_is_staged(volumes: Any) -> None:
    volumes.node.start()
    caller = volumes.caller(SHARE)
    caller.mount(pod_of("pod-f"), FlexVolume("share", {"host": "files"}, {"password": b"secret"}))
    assert len(staged(volumes, SHARE)) == 2
    caller.mount(pod_of("pod-g"), FlexVolume("share", {"host": "files"}, {"password": b"another"}))
    assert len(staged(volumes, SHARE)) == 3


@pytest.mark.whole
def test_a_mount_of_kubelet_that_is_repeated_changes_nothing(volumes: Any) -> None:
    path = target(volumes, HOSTDIR, "pod-b", "logs")
    before = mount_of(path)
    with (path / "file").open("w"):  # as a container has, so that nobody unmounts it in between
        volumes.node.start()
        caller = volumes.caller(HOSTDIR)
        caller.sees_binds = False  # so that the driver is called again
        caller.mount(pod_of("pod-b"), FlexVolume("logs", {"path": "logs", "create": "true"}))
        assert caller.calls[-1][0] == "mount"
        assert mount_of(path) == before


def test_volumes_end_without_their_records(volumes: Any) -> None:
    for path in (volumes.journal / "flexvolume").glob("*.json"):
        path.unlink()
    volumes.node.start()
    end_every_pod(volumes)
    assert (volumes.mounted(), volumes.records()) == ([], [])


@pytest.mark.whole
def test_after_a_reboot_the_ledger_is_empty(after_a_reboot: Callable[[str], Any]) -> None:
    with after_a_reboot("volumes") as left:
        assert left.records() != []
        left.node.start()
        assert left.records() == []
        assert left.told()["volumes"] == []
        key = left.journal / "flexvolume" / "secret-mark.key"
        assert key.stat().st_size == 32
