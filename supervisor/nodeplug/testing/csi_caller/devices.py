"""Kubelet's folders of block volumes over CSI (csi_block.go).

Owns: where a device is published, kubelet's record of it, and what is removed after the last pod.
Refuses: calls (`caller`).
"""

import shutil
from dataclasses import dataclass
from pathlib import Path

from nodeplug.contract.values import Pod
from nodeplug.testing.csi_caller.calls import CsiFailure
from nodeplug.testing.csi_caller.volumes import RECORD, CsiVolume, read_driver, write_record


@dataclass(frozen=True, slots=True)
class Devices:
    """The block volumes of a kubelet.

    Attributes:
        kubelet_root: its --root-dir.
    """

    kubelet_root: Path

    @property
    def _root(self) -> Path:
        return self.kubelet_root / "plugins" / "kubernetes.io" / "csi" / "volumeDevices"

    def target(self, pod: Pod, name: str) -> Path:
        """Where the driver puts the device for a pod: a file that it makes and removes."""
        return self._root / "publish" / name / pod.uid

    def mapped(self, pod: Pod, name: str) -> Path:
        """Where kubelet maps the device for a pod, and has it measured (csi_plugin.go, NewBlockVolumeMapper)."""
        return self._root / name / "dev" / pod.uid

    def staging(self, name: str) -> Path:
        """Which path the driver is told for staging, also if it does not stage."""
        return self._root / "staging" / name

    def record(self, name: str) -> Path:
        """The folder with kubelet's record of a volume."""
        return self._root / name / "data"

    def prepare(self, pod: Pod, volume: CsiVolume, driver: str, node: str) -> Path:
        """Make the folders and the record before the driver is called; return the target."""
        self.record(volume.name).mkdir(mode=0o750, parents=True, exist_ok=True)
        write_record(self.record(volume.name), volume, volume.handle, driver, node)
        target = self.target(pod, volume.name)
        target.parent.mkdir(mode=0o750, parents=True, exist_ok=True)
        return target

    def remove(self, pod: Pod, name: str) -> None:
        """Remove what is left once a pod has no device any more (cleanupOrphanDeviceFiles).

        Raises:
            CsiFailure: the driver left the file, which it has to remove itself.
        """
        target = self.target(pod, name)
        if target.exists() or target.is_symlink():
            raise CsiFailure("NodeUnpublishVolume", f"the driver succeeded, and {target} is still there")
        if target.parent.is_dir() and not any(target.parent.iterdir()):
            target.parent.rmdir()
        if not target.parent.exists():
            shutil.rmtree(self._root / name, ignore_errors=True)

    def volumes(self, driver: str) -> list[tuple[Pod, str]]:
        """Return the pods that have devices of a driver, and the volumes' names."""
        records = sorted(self._root.glob(f"*/data/{RECORD}"))
        names = [path.parent.parent.name for path in records if read_driver(path.parent) == driver]
        pods = [(name, path) for name in names for path in sorted((self._root / "publish" / name).glob("*"))]
        return [(Pod(uid=path.name), name) for name, path in pods]
