"""A plugin that notes each volume in its journal, and waits where a test wants it to."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl


class Guest:
    """Serves two devices, and volumes that are only noted."""

    class Config(BaseModel, extra="forbid"):
        folder: Path

    def __init__(self, config: Config, host: n.Host) -> None:
        self._folder = config.folder
        self._host = host
        if (self._folder / "broken").exists():
            raise n.PluginError("the code that is installed now is broken")
        self._wait("load")

    def _wait(self, what: str) -> None:
        """Say that it is there, and wait for as long as a file says so."""
        if (self._folder / f"hold {what}").exists():
            (self._folder / f"in {what}").touch()
            while (self._folder / f"hold {what}").exists():
                time.sleep(0.01)

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.DeviceClaim("example.com/thing"), n.VolumeClaim("example/noted", metrics=False)]

    @hookimpl
    def start(self) -> None:
        self._wait("start")
        with (self._folder / "owners").open("a") as owners:
            owners.write(f"start {os.getpid()}\n")

    @hookimpl
    def stop(self) -> None:
        self._wait("stop")
        with (self._folder / "owners").open("a") as owners:
            owners.write(f"stop {os.getpid()}\n")

    @hookimpl
    def device_list(self, request: n.DeviceList) -> Sequence[n.Device]:
        return [n.Device(n.DeviceId("d0")), n.Device(n.DeviceId("d1"))]

    @hookimpl
    def device_allocate(self, request: n.DeviceAllocate) -> n.Grant:
        return n.Grant(env={"PID": str(os.getpid())})

    @hookimpl
    def volume_attach(self, request: n.VolumeAttach) -> n.VolumeAttached:
        self._wait("attach")
        self._host.journal.write(request.options["name"], phase="attached")
        return n.VolumeAttached(device="/dev/null")

    @hookimpl
    def volume_detach(self, request: n.VolumeDetach) -> None:
        self._host.journal.remove(request.volume_name)

    @hookimpl
    def volume_publish(self, request: n.VolumePublish) -> None:
        raise n.NotSupported("nothing is mounted here")
