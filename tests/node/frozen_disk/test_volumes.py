"""Volumes while the filesystem of their records is frozen."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.node.frozen_disk.freezing import freeze, thaw

from nodeplug import Pod, mounts, unmount
from nodeplug.testing import FlexCaller, FlexFailure, FlexVolume, ScratchNode
from nodeplug.testing.waiting import until

POD = Pod(name="web", uid="uid-1")
DATA = FlexVolume("data", {"name": "data", "size": "16Mi"})


@pytest.fixture
def volumes(node: ScratchNode) -> Iterator[FlexCaller]:
    """A driver that stages, and beside its records nothing of it on the disk."""
    node.kill()
    node.configure(f'[plugins.loopfile]\n[plugins.loopfile.config]\ndirectory = "{node.root}/images"\n')
    node.start()
    yield FlexCaller(node.paths.flexvolume, node.root / "kubelet", "nodeplug/loopfile", timeout=100)
    for target in mounted(node):
        unmount(target, lazy=True)


def mounted(node: ScratchNode) -> list[str]:
    """Return where volumes are mounted; what was mounted last comes first."""
    places = (node.root / "kubelet", node.paths.run / "staging")
    return [
        mount.target
        for mount in reversed(mounts())
        if any(Path(mount.target).is_relative_to(place) for place in places)
    ]


def volume_records(node: ScratchNode) -> list[Path]:
    return list((node.paths.journal / "flexvolume").glob("*.json"))


def mounts_again(volumes: FlexCaller, volume: FlexVolume) -> bool:
    """Repeat a mount, as kubelet does: what hung in a disk ends a moment after the thaw."""
    with suppress(FlexFailure):
        return volumes.mount(POD, volume).is_mount()
    return False


@pytest.mark.whole
@pytest.mark.programs("e2fsck")
def test_a_pods_volume_goes_while_the_disk_of_its_records_is_frozen_and_they_go_when_it_answers(
    node: ScratchNode, disk: Path, volumes: FlexCaller
) -> None:
    volumes.mount(POD, DATA)
    assert mounted(node)
    assert volume_records(node)
    freeze(disk)
    for _ in range(2):  # kubelet may repeat it
        volumes.unmount(POD, "data")
    assert mounted(node) == []
    assert node.status()["volumes"] == []
    thaw(disk)
    until(lambda: volume_records(node) == [])
    volumes.mount_until(POD, DATA, 8)  # what was held back is written first, and a loaded disk may take its time
    assert volume_records(node)


@pytest.mark.programs("e2fsck")
def test_a_mount_fails_and_leaves_nothing_while_the_disk_of_the_records_is_frozen(
    node: ScratchNode, disk: Path, volumes: FlexCaller
) -> None:
    freeze(disk)
    with pytest.raises(FlexFailure, match="disk with the records of volumes does not answer"):
        volumes.mount(POD, DATA)
    assert mounted(node) == []
    thaw(disk)
    until(lambda: mounts_again(volumes, DATA))
    volumes.unmount(POD, "data")
    until(lambda: volume_records(node) == [])


@pytest.mark.whole
def test_the_first_mount_with_a_secret_fails_while_the_disk_of_the_records_is_frozen(
    node: ScratchNode, disk: Path, volumes: FlexCaller
) -> None:
    node.kill()
    node.configure('[plugins.stager]\nuses = "stager:Stager"\n')
    node.start()
    caller = FlexCaller(node.paths.flexvolume, node.root / "kubelet", "scratch/stager", timeout=100)
    secret = FlexVolume("data", {}, secrets={"token": b"correct-horse"})
    freeze(disk)
    with pytest.raises(FlexFailure, match="disk with the records of volumes does not answer"):
        caller.mount(POD, secret)
    thaw(disk)
    until(lambda: mounts_again(caller, secret))
