"""The CSINode of this node: whether it lists the drivers that kubelet says it has registered.

Owns: the looks at that object, and how often there is one.
Refuses: to write it, since it is kubelet's. A driver that it lacks is announced to kubelet again (`served`), which then
writes it. Where it cannot be read, nothing happens but that this is told.

kubelet writes a driver there while it registers it, and never looks again (pkg/volume/csi/nodeinfomanager). What is
lost later stays lost: the scheduler takes the driver for missing, and its pods stay pending.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug.contract.errors import NotFound, PluginError
from nodeplug.csi.served import Served
from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.resources import CSI_NODES, NODES
from nodeplug.process.aside import aside

LOG: Final = logging.getLogger(__name__)
_SPREAD: Final = 0.1
"""Part of an interval by which it varies: the nodes of a cluster do not all ask at once."""
_DOUBLED: Final = 4
"""Times that the interval is doubled while there is no answer."""


@dataclass(slots=True)
class CsiNode:
    """The looks at it. Event loop only.

    Attributes:
        drivers: those that are served now, by name.
        node: its name in the cluster.
        kubeconfig: how to reach the API server; None as `find` does without.
        interval: seconds between two looks.
        trouble: why it is not known whether the drivers are listed; empty if it is.
    """

    drivers: Callable[[], Mapping[str, Served]]
    node: str
    kubeconfig: Path | None
    interval: float
    trouble: str = ""
    _failures: int = 0

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            try:
                access = await aside(lambda: find(self.kubeconfig), "CSI: find the API server")
                async with Client(Credentials(access)) as client:
                    while True:
                        await self._pause()
                        await self.look(client)
            except PluginError as error:
                self._failed(error.message)
            except Exception:
                LOG.exception("CSI: a look at the CSINode failed; there is another one later")
            await self._pause()

    async def _pause(self) -> None:
        seconds = self.interval * 2 ** min(self._failures, _DOUBLED)
        await asyncio.sleep(seconds * random.uniform(1 - _SPREAD, 1 + _SPREAD))  # noqa: S311 - it guards nothing

    async def look(self, client: Client) -> None:
        """Look once, and tell each driver what was seen."""
        if not any(one.registered for one in self.drivers().values()):
            return
        try:
            listed = await self._listed(client)
        except PluginError as error:
            self._failed(error.message)
            return
        self.trouble, self._failures = "", 0
        for name, one in self.drivers().items():
            one.looked("" if name in listed else f"the CSINode {self.node} does not list it, so that pods wait for it")

    async def _listed(self, client: Client) -> frozenset[str]:
        """Return the drivers that the cluster knows here.

        Raises:
            PluginError: that cannot be told. Nor can it where there is no such node: kubelet would be refused a
                registration, and without one it unmounts nothing.
        """
        try:
            found = await client.get(CSI_NODES, self.node)
        except NotFound:
            pass
        else:
            return frozenset(str(one["name"]) for one in (found.get("spec") or {}).get("drivers") or ())
        try:
            await client.get(NODES, self.node)
        except NotFound:
            raise NotFound("the cluster has no node of this name; look at node_name under [supervisor]") from None
        return frozenset()

    def _failed(self, why: str) -> None:
        self._failures += 1
        trouble = f"it is not known whether the CSINode {self.node} lists it: {why}"
        if trouble != self.trouble:
            LOG.warning("CSI: %s", trouble)
        self.trouble = trouble
