"""Which drivers still have volumes mounted: kubelet unmounts through their executables."""

from pathlib import Path

import pytest

from nodeplug import mount, unmount
from nodeplug.install.drivers import drivers_in_use


@pytest.mark.parametrize(
    ("target", "driver"),
    [
        ("/var/lib/kubelet/pods/6f/volumes/nodeplug~loopfile/data", "nodeplug/loopfile"),
        ("/var/lib/kubelet/plugins/kubernetes.io/flexvolume/nodeplug/disk/mounts/data", "nodeplug/disk"),
    ],
)
def test_mount_points_of_kubelet_name_their_driver(target: str, driver: str) -> None:
    assert drivers_in_use([target]) == {driver}


def test_other_mount_points_name_no_driver() -> None:
    assert drivers_in_use(["/", "/proc", "/var/lib/kubelet/pods/6f/volumes/kubernetes.io~csi/pv/mount"]) == frozenset()


def test_mounts_of_this_process_are_looked_at_by_default(tmp_path: Path) -> None:
    target = tmp_path / "pods/6f/volumes/nodeplug~here/data"
    target.mkdir(parents=True)
    mount("none", str(target), "tmpfs")
    try:
        assert "nodeplug/here" in drivers_in_use()
    finally:
        unmount(str(target))
    assert "nodeplug/here" not in drivers_in_use()
