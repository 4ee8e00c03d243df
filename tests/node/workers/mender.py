"""A plugin that notes in its journal what it begins, and at its start undoes what another left half done."""

import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from pydantic import BaseModel
from pyroute2 import IPRoute, NetlinkError

import nodeplug as n
from nodeplug import hookimpl

LINK = "mended0"


class Mender:
    """Is killed once, in the middle of a hook: what it does is there, and its record says that it has not ended."""

    class Config(BaseModel, extra="forbid"):
        at: str
        once: Path

    def __init__(self, config: Config, host: n.Host) -> None:
        self._config, self._host = config, host

    @hookimpl
    def claims(self) -> Sequence[n.Claim]:
        return [n.CniClaim("thing"), n.VolumeClaim("example/thing")]

    @hookimpl
    def start(self) -> None:
        for entry in self._host.journal.entries():
            with (self._host.state_dir / "seen").open("a") as seen:
                seen.write(f"{entry.key} {entry.phase}\n")
            if link := entry.data.get("link"):
                unlink(link)
            if target := entry.data.get("mounted"):
                n.unmount(target)
            self._host.journal.remove(entry.key)

    def _begun(self, hook: str) -> None:
        if hook == self._config.at and not self._config.once.exists():
            self._config.once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    @hookimpl
    def volume_stage(self, request: n.VolumeStage) -> None:
        self._host.journal.write("stage", phase="mounting", data={"mounted": request.staging_path})
        n.mount("tmpfs", request.staging_path, "tmpfs")
        self._begun("volume_stage")
        (Path(request.staging_path) / "whole").touch()
        self._host.journal.remove("stage")

    @hookimpl
    def volume_publish(self, request: n.VolumePublish) -> None:
        self._host.journal.write("publish", phase="binding", data={"mounted": request.target_path})
        n.bind(request.staging_path, request.target_path)
        self._begun("volume_publish")
        self._host.journal.remove("publish")

    @hookimpl
    def cni_add(self, request: n.CniAdd) -> n.CniResult:
        self._host.journal.write("add", phase="linking", data={"link": LINK})
        with IPRoute() as route:
            route.link("add", ifname=LINK, kind="veth", peer="mended1")
        self._begun("cni_add")
        self._host.journal.remove("add")
        return n.CniResult(interfaces=(n.CniInterface(LINK),))

    @hookimpl
    def cni_del(self, request: n.CniDel) -> None:
        unlink(LINK)


def unlink(name: str) -> None:
    with IPRoute() as route, suppress(NetlinkError):
        for index in route.link_lookup(ifname=name):
            route.link("del", index=index)
