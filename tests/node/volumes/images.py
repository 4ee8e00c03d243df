"""A loopfile plugin without a daemon, and what a provisioner and kubelet ask of it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nodeplug import (
    VolumeCapacity,
    VolumeCreate,
    VolumeDelete,
    VolumeExpand,
    VolumeId,
    VolumeSnapshot,
    VolumeStage,
    VolumeUnstage,
    unmount,
)
from nodeplug_volumes import loopdev
from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig
from nodeplug_volumes.marker import MARKER

DRIVER = "nodeplug/loopfile"
MIB = 1 << 20


class Node:
    """A loopfile plugin, and folders to stage its volumes in."""

    def __init__(self, plugin: LoopFile, directory: Path, area: Path) -> None:
        self.plugin, self.directory, self._area = plugin, directory, area
        self.staged: list[str] = []

    def create(self, name: str, size: int = 16 * MIB, **more: Any) -> str:
        return self.plugin.volume_create(VolumeCreate(driver=DRIVER, name=name, size=size, **more)).volume_id

    def delete(self, name: str) -> None:
        self.plugin.volume_delete(VolumeDelete(driver=DRIVER, volume_id=VolumeId(name)))

    def snapshot(self, volume: str, name: str) -> str:
        request = VolumeSnapshot(driver=DRIVER, volume_id=VolumeId(volume), name=name)
        return self.plugin.volume_snapshot(request).snapshot_id

    def stage(self, name: str, *, block: bool = False, **more: Any) -> Path:
        path = self._area / "staged" / name
        path.parent.mkdir(exist_ok=True)
        if block:
            path.touch()
        else:
            path.mkdir(exist_ok=True)
        request = VolumeStage(
            driver=DRIVER,
            volume_id=VolumeId(name),
            options={"name": name},
            staging_path=str(path),
            block=block,
            must_exist=True,
            **more,
        )
        self.plugin.volume_stage(request)
        self.staged.append(str(path))
        return path

    def unstage(self, name: str) -> None:
        path = str(self._area / "staged" / name)
        self.plugin.volume_unstage(VolumeUnstage(driver=DRIVER, volume_id=VolumeId(name), staging_path=path))

    def write(self, name: str, text: str) -> None:
        (self.stage(name) / "file").write_text(text)
        self.unstage(name)

    def read(self, name: str) -> str:
        text = (self.stage(name) / "file").read_text()
        self.unstage(name)
        return text

    @property
    def room(self) -> int:
        return self.plugin.volume_capacity(VolumeCapacity(driver=DRIVER)).available

    @property
    def files(self) -> list[str]:
        found = (path for path in self.directory.rglob("*") if path.is_file() and path.name != MARKER)
        return sorted(str(path.relative_to(self.directory)) for path in found)

    def expand(self, name: str, size: int, at: Path | None = None) -> int:
        """Let a volume grow; with `at`, where it is mounted."""
        path = str(at) if at else ""
        request = VolumeExpand(driver=DRIVER, volume_id=VolumeId(name), new_size=size, mount_path=path)
        return self.plugin.volume_expand(request)


Make = Callable[..., Node]


@contextmanager
def images(area: Path, make_host: Callable[[str], Any]) -> Iterator[Make]:
    """Make plugins with folders of images; nothing of them is left."""
    made: list[Node] = []

    def one(directory: Path | None = None, **config: Any) -> Node:
        folder = directory or area / "images"
        plugin = LoopFile(LoopFileConfig(directory=folder, **config), make_host("loopfile"))
        plugin.start()
        made.append(Node(plugin, folder, area))
        return made[-1]

    try:
        yield one
    finally:
        for node in made:
            node.plugin.stop()
            for path in node.staged:
                unmount(path, lazy=True)
            for image in [*node.directory.glob("*.img")]:
                loopdev.release_idle(image)
