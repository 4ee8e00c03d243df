"""Volume drivers that create volumes, as folders: one that keeps every rule, and one that breaks each."""

import shutil
import subprocess
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel

from nodeplug import (
    Claim,
    Host,
    InvalidRequest,
    NotFound,
    ProvisionedVolume,
    Snapshot,
    VolumeClaim,
    VolumeCreate,
    VolumeDelete,
    VolumeId,
    VolumeIdentify,
    VolumeList,
    VolumePublish,
    VolumeSnapshot,
    VolumeSnapshotDelete,
    VolumeUnpublish,
    bind,
    hookimpl,
    mounted_at,
    unmount,
)


class Maker:
    """Keeps every rule."""

    class Config(BaseModel, extra="forbid"):
        pass

    isolation = "thread"
    example: ClassVar[dict[str, Any]] = {"volume_options": {"name": "data"}, "keeps_data": True}

    def __init__(self, config: Config, host: Host) -> None:
        del config
        self.folder = host.state_dir / "volumes"
        self.taken = host.state_dir / "snapshots"

    @hookimpl
    def start(self) -> None:
        for folder in (self.folder, self.taken):
            folder.mkdir(exist_ok=True)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example/maker", node_local=True)]

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        name = request.options.get("name", "")
        if not name.replace("-", "").isalnum():
            raise InvalidRequest("the option name must be letters, digits and '-'")
        return VolumeId(name)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        folder = self.folder / request.volume_id
        if request.must_exist and not folder.is_dir():
            raise NotFound(f"there is no volume {request.volume_id!r}")
        folder.mkdir(exist_ok=True)
        bind(str(folder), request.target_path, read_only=request.read_only)

    def made(self, name: str) -> ProvisionedVolume:
        return ProvisionedVolume(volume_id=VolumeId(name), size=1 << 20, options={"name": name})

    @hookimpl
    def volume_create(self, request: VolumeCreate) -> ProvisionedVolume:
        folder = self.folder / request.name
        if request.snapshot and not folder.exists():
            shutil.copytree(self.taken / request.snapshot, folder)
        folder.mkdir(exist_ok=True)
        return self.made(request.name)

    @hookimpl
    def volume_delete(self, request: VolumeDelete) -> None:
        shutil.rmtree(self.folder / request.volume_id, ignore_errors=True)

    @hookimpl
    def volume_list(self, request: VolumeList) -> Sequence[ProvisionedVolume]:
        return [self.made(path.name) for path in self.folder.iterdir()]

    @hookimpl
    def volume_snapshot(self, request: VolumeSnapshot) -> Snapshot:
        taken = self.taken / request.name
        if not taken.exists():
            self.copy(self.folder / request.volume_id, taken)
        return Snapshot(snapshot_id=request.name, volume_id=request.volume_id, size=1 << 20, created=1.0)

    def copy(self, source: Path, target: Path) -> None:
        shutil.copytree(source, target)

    @hookimpl
    def volume_snapshot_delete(self, request: VolumeSnapshotDelete) -> None:
        shutil.rmtree(self.taken / request.snapshot_id, ignore_errors=True)


class Raw(Maker):
    """Keeps every rule with block volumes, too: loop devices of files."""

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example/maker", node_local=True, block=True)]

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        if not request.block:
            super().volume_publish(request)
            return
        image = self.folder / request.volume_id / "device"
        with image.open("ab") as stream:
            stream.truncate(1 << 20)
        if mounted_at(request.target_path) is None:
            command = ["losetup", "--find", "--show", str(image)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            bind(done.stdout.strip(), request.target_path, read_only=request.read_only)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        found = mounted_at(request.target_path)
        if found is not None and Path(request.target_path).is_block_device():
            unmount(request.target_path)
            subprocess.run(["losetup", "--detach", f"/dev{found.root}"], check=True)


class WipesDevices(Raw):
    breaks = "a-block-volume-keeps-its-bytes", "does not find what the one before has written"

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        if request.block:
            (self.folder / request.volume_id / "device").write_bytes(b"")
        super().volume_publish(request)


class CreatesAnother(Maker):
    breaks = "a-volume-is-created-once", "created again it is"

    @hookimpl
    def volume_create(self, request: VolumeCreate) -> ProvisionedVolume:
        name = uuid.uuid4().hex
        (self.folder / name).mkdir()
        return self.made(name)


class DeletesOnce(Maker):
    breaks = "a-deleted-volume-is-gone", "a second delete failed: NOT_FOUND"

    @hookimpl
    def volume_delete(self, request: VolumeDelete) -> None:
        if not (self.folder / request.volume_id).exists():
            raise NotFound(f"there is no volume {request.volume_id!r}")
        super().volume_delete(request)


class ListsNothing(Maker):
    breaks = "a-list-has-what-was-created", "is not in the list"

    @hookimpl
    def volume_list(self, request: VolumeList) -> Sequence[ProvisionedVolume]:
        return []


class TakesNothing(Maker):
    breaks = "a-snapshot-is-restored", "lacks what its source had"

    def copy(self, source: Path, target: Path) -> None:
        del source
        target.mkdir()
