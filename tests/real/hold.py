"""A plugin that sees every call: it keeps answers back on request, and notes which secrets a volume was given."""

import json
import os
import time
from collections.abc import Generator, Sequence
from pathlib import Path

from nodeplug import (
    Claim,
    CniAdd,
    CniResult,
    DeviceAllocate,
    DeviceReleased,
    Grant,
    Host,
    PluginError,
    VolumePublish,
    VolumeUnstage,
    hookimpl,
)

FOLDER = Path(os.environ.get("HOLD_FOLDER", "/nonexistent"))


def hold(verb: str) -> None:
    """Keep a call where it is for as long as a file exists: its work is done, unless the verb says before."""
    while (FOLDER / f"hold-{verb}").exists():
        (FOLDER / f"held-{verb}").touch()
        time.sleep(0.02)


class Hold:
    """The plugin."""

    def __init__(self, config: object, host: Host) -> None:
        """Fail for as long as a file exists, as code does that was installed wrong."""
        if (FOLDER / "broken").exists():
            raise PluginError("the code that is installed now is broken")

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        """Own nothing."""
        return []

    @hookimpl(wrapper=True)
    def cni_add(self, request: CniAdd) -> Generator[None, CniResult, CniResult]:
        """Hold the pod's network, not its loopback."""
        result = yield
        if request.network == "nodeplug":
            hold("add")
        return result

    @hookimpl(wrapper=True)
    def device_allocate(self, request: DeviceAllocate) -> Generator[None, Grant, Grant]:
        """Hold what claims get, after it is granted."""
        grant = yield
        if request.claim is not None:
            hold("allocate")
        return grant

    @hookimpl(wrapper=True)
    def device_released(self, request: DeviceReleased) -> Generator[None, None, None]:
        """Hold what claims give back, before their plugin has heard of it."""
        if request.claim is not None:
            hold("release")
        yield

    @hookimpl(wrapper=True)
    def volume_publish(self, request: VolumePublish) -> Generator[None, None, None]:
        """Hold the mount; note the secrets where no other part of the node looks."""
        hold("before-mount")
        yield
        hold("mount")
        if request.secrets:
            seen = {key: value.decode() for key, value in request.secrets.items()}
            (FOLDER / f"secrets-of-{request.pod.name}-{request.driver.replace('/', '~')}").write_text(json.dumps(seen))

    @hookimpl(wrapper=True)
    def volume_unstage(self, request: VolumeUnstage) -> Generator[None, None, None]:
        """Hold the unmount of the last pod: its own place is empty by then, the volume still mounted for the node."""
        hold("before-unmount")
        yield
        hold("unmount")
