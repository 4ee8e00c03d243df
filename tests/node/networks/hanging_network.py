"""A CNI plugin whose ADD hangs until a file is there."""

import time
from pathlib import Path

from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl


class Hanging:
    """Serves the name `hanging`."""

    class Config(BaseModel, extra="forbid"):
        until: Path

    def __init__(self, config: Config, host: n.Host) -> None:
        del host
        self._until = config.until

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.CniClaim("hanging")]

    @hookimpl
    def cni_add(self) -> n.CniResult:
        while not self._until.exists():
            time.sleep(0.05)
        return n.CniResult()

    @hookimpl
    def cni_del(self) -> None:
        return
