"""A plugin whose loading, start and list a test holds up and changes by files in a folder."""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel

from nodeplug import Claim, Device, DeviceClaim, DeviceId, Grant, Host, hookimpl

LATE: Final = "late"
"""While there is such a file, the constructor does not return."""


class Things:
    """Lists what `devices.json` says, by resource: ids that end with "!" are unhealthy."""

    class Config(BaseModel, extra="forbid"):
        folder: Path

    def __init__(self, config: Config, host: Host) -> None:
        del host
        self._folder = config.folder
        while (self._folder / LATE).exists():
            time.sleep(0.01)
        if (self._folder / "refused").exists():
            raise OSError("no such card")

    def _lists(self) -> dict[str, list[str]]:
        found: Any = json.loads((self._folder / "devices.json").read_text())
        return dict(found)

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(name) for name in self._lists()]

    @hookimpl
    def start(self) -> None:
        if (self._folder / "failing").exists():
            raise OSError("the card does not answer")

    @hookimpl
    def device_list(self, request: Any) -> Sequence[Device]:
        if (self._folder / "listless").exists():
            raise OSError("the list is gone")
        return [
            Device(
                DeviceId(name.rstrip("!")),
                healthy=not name.endswith("!"),
                reason="it smokes" if name.endswith("!") else "",
                grant=Grant(env={f"MARK_{name.rstrip('!')}": "granted"}),
            )
            for name in self._lists()[request.resource]
        ]
