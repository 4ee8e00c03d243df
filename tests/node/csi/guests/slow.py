"""A volume whose stage takes as long as a test wants, or fails."""

import time
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from nodeplug import (
    Claim,
    PluginError,
    VolumeClaim,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeStage,
    bind,
    hookimpl,
    mount,
)


class SlowConfig(BaseModel):
    folder: Path
    names: list[str] = ["acme/slow"]
    csi_name: str = ""


class Slow:
    """The plugin: it stays in stage while there is a file `hold`, and fails there with a file `fail`."""

    Config = SlowConfig

    def __init__(self, config: SlowConfig, host: Any) -> None:
        self._config = config

    @hookimpl
    def claims(self) -> list[Claim]:
        return [VolumeClaim(name, csi_name=self._config.csi_name) for name in self._config.names]

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        return VolumeId(request.options["name"])

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        mount("tmpfs", request.staging_path, "tmpfs")
        if (self._config.folder / "fail").exists():
            raise PluginError("the disk is broken")
        (self._config.folder / "inside").touch()
        while (self._config.folder / "hold").exists():
            time.sleep(0.01)

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        bind(request.staging_path, request.target_path, read_only=request.read_only)
