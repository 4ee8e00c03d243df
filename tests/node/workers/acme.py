"""A plugin that is installed in an environment of its own, with a library of its own."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl


class Acme:
    class Config(BaseModel, extra="forbid"):
        name: str = "acme"

    def __init__(self, config: Config, host: n.Host) -> None:
        library = importlib.import_module("acme_library")  # nobody has it but this environment
        self._name, self._library = config.name, library.VERSION

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.DeviceClaim(f"example.com/{self._name}")]

    @hookimpl
    def device_list(self) -> list[n.Device]:
        return [n.Device(n.DeviceId("d0"))]

    @hookimpl
    def device_allocate(self, request: n.DeviceAllocate) -> n.Grant:
        return n.Grant(env={"LIBRARY": self._library})

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        return {
            "executable": sys.executable,
            "version": list(sys.version_info[:2]),
            "path": sys.path,
            "environment": sorted(os.environ),
            "input": os.read(0, 1).decode(),
            "modules": sorted({module.partition(".")[0] for module in sys.modules}),
        }
