"""What loopfile tells of the disk of its images: figures, and a warning while there is still time."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.disks import attached_disk
from tests.node.volumes.images import MIB, Make, Node, images

from nodeplug.testing.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]
SHORT = "its volumes may still need"


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with attached_disk(tmp_path / "disk", "xfs", "1G") as folder:
        yield folder


@pytest.fixture
def make(area: Path, make_host: Any) -> Iterator[Make]:
    with images(area, make_host) as one:
        yield one


def figures(node: Node) -> dict[str, float]:
    return {metric.name: metric.samples[0].value for metric in node.plugin.metrics()}


def fill(disk: Path, size: int) -> None:
    with (disk / "filler").open("wb") as filler:
        os.posix_fallocate(filler.fileno(), 0, size)


@pytest.mark.programs("e2fsck", "mkfs.ext4")
def test_the_metrics_are_what_volumes_have_and_may_still_need_of_the_disk(disk: Path, make: Make) -> None:
    node = make(disk / "images")
    node.create("a", 128 * MIB)
    (node.stage("a") / "big").write_bytes(os.urandom(32 * MIB))
    node.unstage("a")
    found = os.statvfs(disk)
    told = figures(node)
    assert told["volumes_size_bytes"] == 128 * MIB
    assert 64 * MIB <= told["volumes_promised_bytes"] <= 96 * MIB  # less what is written
    assert abs(told["volumes_disk_free_bytes"] - found.f_bavail * found.f_frsize) <= 8 * MIB


@pytest.mark.programs("mkfs.ext4")
def test_the_log_warns_once_before_the_disk_is_full_and_again_after_it_was_not(
    disk: Path, make: Make, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nodeplug_volumes.loopfile._LOOK_EVERY", 0.0)
    node = make(disk / "images")
    node.create("a", 512 * MIB)
    figures(node)
    assert SHORT not in caplog.text
    fill(disk, 600 * MIB)
    told = figures(node)
    figures(node)
    assert told["volumes_disk_free_bytes"] > 100 * MIB  # a write to a volume does not fail yet
    assert caplog.text.count(SHORT) == 1
    (disk / "filler").unlink()
    until(lambda: figures(node)["volumes_disk_free_bytes"] > 600 * MIB)  # xfs frees a little later
    fill(disk, 600 * MIB)
    figures(node)
    assert caplog.text.count(SHORT) == 2
