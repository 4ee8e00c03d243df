"""A plugin of all styles for the benchmark, which runs once as a thread and once in a process."""

import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl

HOLD: Final = partial(sum, range(2_000_000))
"""Burns a core for some hundredths of a second, and keeps the interpreter's lock.

Code in C never looks whether others want it, as a plain loop does every switch interval."""


class Guest:
    """Does next to nothing, so that what remains is the way to it and back."""

    class Config(BaseModel):
        """What differs between two of them."""

        name: str
        devices: int = 16
        burns: Path | None = None

    def __init__(self, config: Config, host: n.Host) -> None:
        self._config = config
        self._host = host

    @hookimpl
    def claims(self) -> Sequence[n.Claim]:
        """Claim one name of each kind."""
        name = self._config.name
        return [n.CniClaim(f"bench-{name}"), n.DeviceClaim(f"bench.nodeplug.io/{name}"), n.VolumeClaim(f"bench/{name}")]

    @hookimpl
    def start(self) -> None:
        """Keep the interpreter's lock while a file is there, if asked."""
        if self._config.burns is not None:
            threading.Thread(target=self._burn, args=(self._config.burns,), daemon=True).start()

    def _burn(self, path: Path) -> None:
        while True:
            while path.exists():
                HOLD()
            time.sleep(0.05)

    @hookimpl
    def device_list(self) -> Sequence[n.Device]:
        """List the same devices each time."""
        whole = n.DeviceId("card-0")
        return [
            n.Device(
                n.DeviceId(f"unit-{number}"),
                attributes={"model": "bench", "slot": number},
                capacity={"memory": 1 << 30},
                part=n.Part(whole, {"memory": 1 << 30}),
            )
            for number in range(self._config.devices)
        ]

    @hookimpl
    def device_allocate(self, request: n.DeviceAllocate) -> n.Grant:
        """Grant what a GPU plugin grants."""
        return n.Grant(
            env={"UNITS": ",".join(request.ids), "LIMIT": str(len(request.ids) << 30)},
            nodes=(n.DeviceNode("/dev/null"), n.DeviceNode("/dev/zero")),
        )

    @hookimpl
    def cni_add(self, request: n.CniAdd) -> n.CniResult:
        """Return a result of the usual size."""
        interface = n.CniInterface(request.ifname, sandbox=request.netns.path, mac="02:00:00:00:00:01")
        return n.CniResult(interfaces=(interface,))

    @hookimpl
    def cni_del(self) -> None:
        """Have nothing to undo."""

    @hookimpl
    def volume_publish(self, request: n.VolumePublish) -> None:
        """Mount a small filesystem."""
        n.mount("tmpfs", request.target_path, "tmpfs", options=["size=64k"])
