"""What the daemon knows of itself, gathered from the rooms that know it.

Owns: the whole status, whether the daemon is ready and alive, and what of it is not known because a disk hangs.
Refuses: the shape of each part (`status`), and to ask a plugin: people look when plugins hang.
"""

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from nodeplug.cluster.section import Publishing
from nodeplug.cni.attachments import Attachment, Attachments
from nodeplug.cni.spool import Spool
from nodeplug.config.models import Paths
from nodeplug.contract.errors import TryAgain
from nodeplug.csi.drivers import CsiDrivers
from nodeplug.device.podresources import PodResources
from nodeplug.device.resources import Resources
from nodeplug.dra.section import DynamicResources
from nodeplug.extender.section import Extending
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.reload import Reloader
from nodeplug.install.keeper import Keeper
from nodeplug.networks.section import NetworksOfCluster
from nodeplug.node_labels import NodeLabels
from nodeplug.observe import status
from nodeplug.observe.own_calls import OwnCalls
from nodeplug.observe.processes import Usage, usage
from nodeplug.observe.recorder import Recorder
from nodeplug.observe.state_disk import StateDisk
from nodeplug.process.descriptor_reserve import DescriptorReserve
from nodeplug.process.lane import Lane
from nodeplug.provisioner.section import Provisioning
from nodeplug.release import own_version
from nodeplug.volumes.ledger import Ledger

LIVELINESS: Final = 30.0
"""Seconds without a look at the daemon's own state after which /healthz says so."""


@dataclass
class Overview:
    """The present state of one daemon. Event loop only, except `readiness` and `liveness`.

    Attributes:
        calls: those of the daemon to itself.
        readiness: whether every part serves, and why each other one does not; as of the last `sample`.
    """

    node: str
    paths: Paths
    registry: Registry
    reserve: DescriptorReserve
    resources: Resources
    podresources: PodResources
    csi: CsiDrivers
    claims: DynamicResources
    provisioner: Provisioning
    extender: Extending
    networks: NetworksOfCluster
    publishing: Publishing
    attachments: Attachments
    ledger: Ledger
    spool: Spool
    recorder: Recorder
    reloader: Reloader
    labels: NodeLabels
    keeper: Keeper
    disk: StateDisk
    readiness: tuple[bool, Mapping[str, str]] = (False, {"daemon": "it is starting"})
    _started: float = field(default_factory=time.monotonic)
    _used: Mapping[int, Usage] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._beat = self._started
        self.calls = OwnCalls(self.paths.exec_socket)
        self._measuring = Lane("the kernel, asked for the memory of processes,")
        self._lanes = {
            "attachments": Lane(f"the folder {self.paths.attachments}"),
            "volumes": Lane(f"the state folder {self.paths.state}"),
        }

    async def whole(self) -> dict[str, Any]:
        """Describe the daemon; see `nodeplug.observe.status` for the shape."""
        unknown: dict[str, str] = {}
        records = await self._known("attachments", self._attachments, (), unknown)
        ledger = self.ledger
        volumes = await self._known("volumes", lambda: (ledger.all_staged(), ledger.targets()), ((), ()), unknown)
        entrypoints = await self.keeper.as_dict()
        return self.vital() | {
            "version": own_version(),
            "node": self.node,
            "pid": os.getpid(),
            "uptime_seconds": round(time.monotonic() - self._started, 3),
            "attachments": status.attachments(records),
            "volumes": status.volumes(*volumes),
            "unknown": unknown,
            "recent": self.recorder.latest(),
            "entrypoints": entrypoints,
        }

    def _attachments(self) -> tuple[Attachment, ...]:
        return (*self.attachments.list(), *self.attachments.delegated.list())

    async def _known(self, what: str, look: Callable[[], Any], otherwise: Any, unknown: dict[str, str]) -> Any:
        """Look at the disk for a part of the status, or note why that part is not known."""
        try:
            return await self._lanes[what].run(look)
        except TryAgain as error:
            unknown[what] = str(error)
            return otherwise

    def vital(self) -> dict[str, Any]:
        """Return the part of the status that needs no disk."""
        statuses, slots = self.resources.status(), self.registry.slots.values()
        reasons = status.unready(slots, statuses)
        parts = {
            "configuration": self.reloader.error,
            "labels of the node": self.labels.trouble,
            "entrypoints": self.keeper.problem,
            "state folder": self.disk.reason,
            "descriptors": self.reserve.used,
            "deferred DELs": self.spool.trouble,
            "CSI": self.csi.trouble,
            "scheduler extenders": self.extender.trouble,
        }
        reasons |= {part: reason for part, reason in parts.items() if reason}
        return {
            "ready": not reasons,
            "reasons": reasons,
            "plugins": status.plugins(slots, reasons, self._used),
            "resources": status.resources(statuses, self.podresources.holders(), self.podresources.unconfirmed()),
            "csi": self.csi.status(),
            "dra": status.drivers_of_claims(self.claims.status(), self.podresources.users_of),
            "provisioner": self.provisioner.status(),
            "extender": self.extender.status(),
            "networks": self.networks.status(),
            "cluster": self.publishing.status(),
            "calls": status.calls(self.registry.calls),
            "spool": self.spool.count(),
            "stranded": status.stranded(self.spool.stranded()),
        }

    async def measure(self) -> None:
        """Measure the processes of plugins; what was measured last stands while the kernel does not answer."""
        pids = [slot.instance.worker.pid for slot in self.registry.slots.values() if slot.instance.worker is not None]
        with suppress(TryAgain):
            self._used = await self._measuring.run(lambda: usage(pids))

    def sample(self) -> Mapping[str, Any]:
        """Look at the daemon's own state, and return its vital part."""
        vital = self.vital()
        self.readiness = (vital["ready"], vital["reasons"])
        self._beat = time.monotonic()
        return vital

    def liveness(self) -> str:
        """Return why the daemon seems to hang or to answer nobody; empty if it does neither."""
        silent = time.monotonic() - self._beat
        if silent > LIVELINESS:
            return f"the daemon has not looked at its own state for {silent:.0f} s"
        return self.calls.trouble()
