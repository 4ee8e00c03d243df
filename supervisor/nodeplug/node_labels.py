"""The labels of this node, as the cluster has them, for sections that choose nodes by label.

Owns: following the Node object, and the record of its labels.
Refuses: to be needed: with an API server that is away, the labels are those that were known last. Where no section asks
for a label, nothing is asked and the client of the API server is not imported.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from nodeplug.config import Configuration, node_name, selection
from nodeplug.contract.errors import PluginError
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane

if TYPE_CHECKING:
    from nodeplug.kubeapi.client import Client
    from nodeplug.kubeapi.watch import Watch

LOG: Final = logging.getLogger(__name__)
_LOOK: Final = 1.0
_AGAIN: Final = 5.0


@dataclass(slots=True)
class NodeLabels:
    """Follows them. Event loop only.

    Attributes:
        configuration: what is in force.
        changed: called when the labels are others than those that are recorded.
    """

    configuration: Callable[[], Configuration]
    changed: Callable[[], None]
    _known: bool = False
    _problem: str = ""
    _watch: "Watch | None" = None
    _lane: Lane = field(default_factory=lambda: Lane("the record of this node's labels"))

    @property
    def trouble(self) -> str:
        """Why sections wait for labels; empty where none does: with those of an earlier time, everything goes on."""
        why = self._problem or (self._watch.trouble if self._watch is not None else "")
        return (
            f"sections with a node_selector wait for the labels of this node: {why}" if why and not self._known else ""
        )

    async def run(self) -> None:
        """Follow them until cancelled, from the first section on that asks for a label."""
        while not selection.by_labels(self.configuration()):  # noqa: ASYNC110 - each reload may change it
            await asyncio.sleep(_LOOK)
        from nodeplug.kubeapi.client import Client  # noqa: PLC0415 - see above
        from nodeplug.kubeapi.credentials import Credentials, find  # noqa: PLC0415

        while True:
            try:
                self._known = (await self._lane.run(self._recorded)).labels is not None
                access = await aside(lambda: find(self.configuration().kubeconfig), "node labels: find the API server")
                async with Client(Credentials(access)) as client:
                    await self._follow(client)
            except PluginError as error:
                if self._problem != error.message:
                    LOG.warning("the labels of this node cannot be read: %s", error)
                self._problem = error.message
            except Exception:  # no answer of a server may end what serves pods
                LOG.exception("the labels of this node cannot be read; it is tried again")
            await asyncio.sleep(_AGAIN)

    async def _follow(self, client: "Client") -> None:
        from nodeplug.kubeapi.client import Listed  # noqa: PLC0415
        from nodeplug.kubeapi.resources import NODES  # noqa: PLC0415
        from nodeplug.kubeapi.watch import Watch  # noqa: PLC0415

        name = node_name(self.configuration().supervisor)
        self._watch = Watch(client, NODES, fields=f"metadata.name={name}")
        self._problem = ""
        async with aclosing(self._watch.changes()) as changes:
            async for change in changes:
                objects = change.objects if isinstance(change, Listed) else [change.object]
                if not objects:
                    self._problem = f"the cluster has no node {name!r}; look at node_name under [supervisor]"
                for one in objects:
                    labels = (one.get("metadata") or {}).get("labels") or {}
                    await self._take(selection.Node(name, {str(key): str(value) for key, value in labels.items()}))

    async def _take(self, node: selection.Node) -> None:
        self._problem, self._known = "", True
        if await self._lane.run(self._recorded) == node:
            return
        state = self.configuration().supervisor.paths.state
        await self._lane.run(lambda: selection.record(state, node))
        LOG.info("the labels of this node have changed")
        self.changed()

    def _recorded(self) -> selection.Node:
        supervisor = self.configuration().supervisor
        return selection.known(supervisor.paths.state, node_name(supervisor))
