"""A volume whose stage takes as long as a test wants, or fails, and whose publish can fail and keep the target busy."""

import os
import threading
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
    """The plugin: it stays in stage while there is a file `hold`, and fails there with a file `fail`.

    With a file `keep` it fails in publish, and has the target open until that file is gone.
    """

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
        if (self._config.folder / "keep").exists():
            threading.Thread(target=self._keep, args=(os.open(request.target_path, os.O_RDONLY),), daemon=True).start()
            raise PluginError("the disk is on fire")

    def _keep(self, target: int) -> None:
        while (self._config.folder / "keep").exists():
            time.sleep(0.01)
        os.close(target)
        (self._config.folder / "let go").touch()
