"""Two volume drivers as third parties have them, with what the bundled ones lack.

Owns: `Shares`, which leaves the name of a volume to the host, so that it is marked by its secrets, and waits while
the file `hold-stage` or `hold-unpublish` is in its folder; `Disks`, which attaches, so that kubelet chooses where it
stages.
Refuses: shares and disks: each volume is a tmpfs.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from nodeplug import (
    Claim,
    Host,
    VolumeAttach,
    VolumeAttached,
    VolumeClaim,
    VolumeDetach,
    VolumeStage,
    VolumeUnpublish,
    VolumeUnstage,
    hookimpl,
    mount,
)


class SharesConfig(BaseModel):
    folder: Path


class Shares:
    Config = SharesConfig

    def __init__(self, config: SharesConfig, host: Host) -> None:
        self._folder = config.folder

    def _wait(self, step: str) -> None:
        while (self._folder / f"hold-{step}").exists():
            time.sleep(0.02)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example.com/share")]

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        self._wait("stage")
        mount("tmpfs", request.staging_path, "tmpfs", options=("size=1M",))

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        """Note what is released, and leave the unmount to the host."""
        self._wait("unpublish")
        with (self._folder / "released").open("a") as notes:
            notes.write(f"{request.volume_id} {request.target_path}\n")

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Leave the unmount to the host."""


class Disks:
    def __init__(self, config: object, host: Host) -> None:
        pass

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("example.com/disk")]

    @hookimpl
    def volume_attach(self, request: VolumeAttach) -> VolumeAttached:
        return VolumeAttached(device=f"/dev/disk/{request.options['name']}")

    @hookimpl
    def volume_detach(self, request: VolumeDetach) -> None:
        """Nothing was attached."""

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        mount("tmpfs", request.staging_path, "tmpfs", options=("size=1M",))

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Leave the unmount to the host."""
