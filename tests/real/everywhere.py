"""A driver whose volumes are on no node: whatever daemon is asked can delete what another one has made."""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from nodeplug import (
    Claim,
    Host,
    ProvisionedVolume,
    VolumeClaim,
    VolumeCreate,
    VolumeDelete,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
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
    def volume_publish(self, request: VolumePublish) -> None:
        """Give it to a pod."""
        bind(str(self._folder / request.volume_id), request.target_path, read_only=request.read_only)
