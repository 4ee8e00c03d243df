"""A driver that gives its volumes ids of its own, and can kill its daemon at the moment at which it answers."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from nodeplug import (
    Claim,
    Host,
    NotFound,
    ProvisionedVolume,
    VolumeClaim,
    VolumeCreate,
    VolumeDelete,
    VolumeId,
    VolumePublish,
    bind,
    hookimpl,
)


class NumberedConfig(BaseModel):
    """Where the volumes are."""

    folder: Path


class Numbered:
    """The plugin: a folder for each volume, named by a number, and beside it a link of the name to it.

    With a file `die` a copy kills the daemon when it is made.
    """

    Config = NumberedConfig

    def __init__(self, config: NumberedConfig, host: Host) -> None:
        """Make the folders."""
        self._folder, self._names = config.folder, config.folder / "names"
        self._names.mkdir(parents=True, exist_ok=True)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Own one driver."""
        return [VolumeClaim("acme/numbered", clones=True)]

    @hookimpl
    def volume_create(self, request: VolumeCreate) -> ProvisionedVolume:
        """Make a folder, or find it."""
        name = self._names / request.name
        if not name.is_symlink():
            if request.source and not (self._folder / request.source).exists():
                raise NotFound(f"there is no volume {request.source}")
            number = max((int(one.name) for one in self._folder.glob("[0-9]*")), default=0) + 1
            (self._folder / str(number)).mkdir()
            name.symlink_to(f"../{number}")
            die = self._folder / "die"
            if request.source and die.exists():
                die.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return ProvisionedVolume(volume_id=VolumeId(name.readlink().name), size=request.size, options={})

    @hookimpl
    def volume_delete(self, request: VolumeDelete) -> None:
        """Remove it, if there is one."""
        for name in self._names.iterdir():
            if name.readlink().name == request.volume_id:
                name.unlink()
        folder = self._folder / request.volume_id
        if folder.exists():
            folder.rmdir()

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        """Give it to a pod."""
        bind(str(self._folder / request.volume_id), request.target_path, read_only=request.read_only)
