"""A plugin that wants to know more of the cluster than it may."""

from collections.abc import Mapping

import nodeplug as n
from nodeplug import hookimpl


class Nosy:
    def __init__(self, config: object, host: n.Host) -> None:
        self._host = host

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return []

    @hookimpl
    def inspect(self) -> Mapping[str, object]:
        try:
            return {"told": self._host.scheduling.pod("kube-system", "secret")}
        except n.PluginError as error:
            return {"told": error.message}
