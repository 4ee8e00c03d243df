"""A volume driver that leaves the name of a volume to the host, which then marks it by its secrets.

Owns: a tmpfs per volume, staged once per node; while a file named `hold` in its folder is there, staging waits.
Refuses: shares.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

from nodeplug import Claim, Host, VolumeStage, VolumeUnstage, hookimpl, mount


class SharesConfig(BaseModel):
    folder: Path


class Shares:
    Config = SharesConfig

    def __init__(self, config: SharesConfig, host: Host) -> None:
        self._hold = config.folder / "hold"

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [Claim("volume", "example.com/share")]

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        while self._hold.exists():
            time.sleep(0.02)
        mount("tmpfs", request.staging_path, "tmpfs", options=("size=1M",))

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        """Leave the unmount to the host."""
