"""A driver whose volumes are on no node: whatever daemon is asked can delete what another one has made.

Its snapshots are files that name their volumes.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from nodeplug import (
    Claim,
    Host,
    ProvisionedVolume,
    Snapshot,
    VolumeClaim,
    VolumeCreate,
    VolumeDelete,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeSnapshot,
    VolumeSnapshotDelete,
    bind,
    hookimpl,
)


class EverywhereConfig(BaseModel):
    """Where the volumes are."""

    folder: Path


class Everywhere:
    """The plugin: a folder for each volume."""

    Config = EverywhereConfig

    def __init__(self, config: EverywhereConfig, host: Host) -> None:
        """Make the folder."""
        self._folder = config.folder
        self._folder.mkdir(exist_ok=True)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Own one driver."""
        return [VolumeClaim("acme/everywhere")]

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        """Return the name."""
        return VolumeId(request.options["name"])

    @hookimpl
    def volume_create(self, request: VolumeCreate) -> ProvisionedVolume:
        """Make a folder, or find it."""
        (self._folder / request.name).mkdir(exist_ok=True)
        return ProvisionedVolume(volume_id=VolumeId(request.name), size=request.size, options={"name": request.name})

    @hookimpl
    def volume_delete(self, request: VolumeDelete) -> None:
        """Remove it, if there is one."""
        folder = self._folder / request.volume_id
        if folder.exists():
            folder.rmdir()

    @hookimpl
    def volume_snapshot(self, request: VolumeSnapshot) -> Snapshot:
        """Note it, or find its note."""
        note = self._note(request.name)
        note.write_text(request.volume_id)
        created = note.stat().st_mtime
        return Snapshot(snapshot_id=note.stem, volume_id=request.volume_id, size=0, created=created, ready=True)

    @hookimpl
    def volume_snapshot_delete(self, request: VolumeSnapshotDelete) -> None:
        """Remove its note, if there is one."""
        self._note(request.snapshot_id).unlink(missing_ok=True)

    def _note(self, name: str) -> Path:
        return self._folder / f"{name}.snapshot"

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Give it to a pod."""
        bind(str(self._folder / request.volume_id), request.target_path, read_only=request.read_only)
