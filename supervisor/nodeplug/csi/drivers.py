"""The CSI drivers of this node: one per volume claim, served and registered with kubelet.

Owns: which drivers there are, and a note of what is served: a later daemon removes what nobody serves any more.
Refuses: how one is served and registered (`served`), and to give up: every second it compares what is there with what
should be.
"""

import asyncio
import json
import logging
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from nodeplug.config import Configuration
from nodeplug.contract.bounded import read_bounded
from nodeplug.contract.errors import PluginError, TryAgain
from nodeplug.contract.journal import write_durably
from nodeplug.contract.values import Secrets
from nodeplug.csi import codec
from nodeplug.csi.driver import Driver
from nodeplug.csi.served import Served, registration_of, socket_of
from nodeplug.hosting.call import Call
from nodeplug.hosting.front import Front
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.process.aside import aside
from nodeplug.process.lane import Lane
from nodeplug.release import own_version
from nodeplug.volumes.ledger import UNPUBLISHING
from nodeplug.volumes.service import Volumes

if TYPE_CHECKING:
    from nodeplug.contract.values import VolumeClaim
    from nodeplug.csi.csi_node import CsiNode

LOG: Final = logging.getLogger(__name__)
INTERVAL: Final = 1.0
"""Seconds between two looks at what should be served."""


@dataclass(slots=True)
class CsiDrivers:
    """All drivers of this node. Event loop only.

    Attributes:
        registrations: the plugin watcher's folder, in kubelet's root.
        notes: the file with the drivers that were served last.
        node: its name.
        enabled: otherwise only what pods still have of an earlier daemon is served.
        served: by the name of the driver.
        refused: why claims have no driver, by claim.
        trouble: why drivers neither come nor go at present; empty if they do.
    """

    registry: Registry
    runner: Runner
    volumes: Volumes
    registrations: Path
    notes: Path
    node: str
    enabled: bool
    served: dict[str, Served] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    trouble: str = ""
    _noted: Mapping[str, str] | None = None
    _csi_node: "CsiNode | None" = None
    _lane: Lane = field(default_factory=lambda: Lane("kubelet's folders of CSI sockets"))
    _version: str = field(default_factory=own_version)

    @property
    def kubelet(self) -> Path:
        """Its root; drivers are served at `plugins/<driver>/csi.sock` below it."""
        return self.registrations.parent

    async def keep(self) -> None:
        """Serve what is claimed now and what pods still have, and no longer what neither is."""
        try:
            if self._noted is None:
                self._noted = await self._lane.run(self._read_notes)
            wanted = self._wanted()
            gone = {name: claim for name, claim in self._noted.items() if name not in wanted}
            if gone:
                wanted |= await self._still_needed(gone)
            for name in sorted(set(gone) - set(wanted)):
                await self._withdraw(name)
            if wanted != self._noted:
                await self._lane.run(lambda: self._write_notes(wanted))
                self._noted = wanted
        except (PluginError, OSError) as error:  # the disk is full, or kubelet's folder hangs: what is served stays
            trouble = f"drivers stay as they are: {error}; check the disks of {self.notes.parent} and {self.kubelet}"
            if trouble != self.trouble:
                LOG.warning("CSI %s", trouble)
            self.trouble = trouble
            return
        self.trouble = ""
        for name, claim in wanted.items():
            await self._serve(name, claim)

    async def compare(self, configuration: Configuration) -> None:
        """Compare with the CSINode until cancelled; returns at once where nobody gave credentials for that."""
        named, provisioner = configuration.kubeconfig, configuration.provisioner
        given = named is not None or (provisioner is not None and provisioner.enabled)
        if not self.enabled or not (given or await _has_account()):
            return
        from nodeplug.csi.csi_node import CsiNode  # noqa: PLC0415 - only who looks pays for a client

        self._csi_node = CsiNode(lambda: self.served, self.node, named, configuration.supervisor.csi_node_poll)
        await self._csi_node.run()

    async def _still_needed(self, gone: Mapping[str, str]) -> dict[str, str]:
        """Return those that nobody claims at present and that are needed: a plugin still loads, or pods have volumes.

        A pod cannot end without the driver of its volumes; nodeplug unmounts them without the plugin.
        """
        if self.enabled and any(slot.loading for slot in self.registry.slots.values()):
            return dict(gone)
        ledger = self.volumes.ledger
        targets = await self._lane.run(ledger.targets)
        used = {one.volume.driver for one in targets if one.phase != UNPUBLISHING}
        return {name: claim for name, claim in gone.items() if claim in used}

    async def _serve(self, name: str, claim: str) -> None:
        if name not in self.served:
            folders = self.kubelet / "plugins" / "kubernetes.io" / "csi"
            driver = Driver(name, claim, self.node, self._version, folders, self.registry, self.runner, self.volumes)
            self.served[name] = Served(driver, self._lane, self.kubelet / "plugins", self.registrations)
        self.served[name].driver.claim = claim
        try:
            await self.served[name].keep()
        except PluginError as error:
            self.served[name].problem = error.message

    async def _withdraw(self, name: str) -> None:
        served = self.served.pop(name, None)
        if served is not None:
            await served.end(withdraw=True)
        else:  # of an earlier daemon
            for path in (registration_of(self.registrations, name), socket_of(self.kubelet / "plugins", name)):
                await self._lane.run(partial(path.unlink, missing_ok=True))
        LOG.info("CSI driver %s is withdrawn: no plugin serves it, and no pod has a volume of it", name)

    def _read_notes(self) -> Mapping[str, str]:
        try:
            document = json.loads(read_bounded(self.notes))
        except (FileNotFoundError, ValueError):
            return {}
        return {str(name): str(claim) for name, claim in document.items()} if isinstance(document, dict) else {}

    def _write_notes(self, wanted: Mapping[str, str]) -> None:
        write_durably(self.notes, json.dumps(wanted).encode())

    def _wanted(self) -> dict[str, str]:
        if not self.enabled:
            return {}
        wanted: dict[str, str] = {}
        refused: dict[str, str] = {}
        for route in self.registry.routes("volume"):
            claim = cast("VolumeClaim", route.claim)
            try:
                name = codec.driver_name(claim)
            except PluginError as error:
                refused[claim.name] = error.message
                continue
            if name in wanted:
                refused[claim.name] = f"its CSI driver would be {name!r}, as that of {wanted[name]!r}"
            else:
                wanted[name] = claim.name
        for claim_name, why in refused.items():
            if self.refused.get(claim_name) != why:
                LOG.warning("volume %s has no CSI driver: %s", claim_name, why)
        self.refused = refused
        return wanted

    async def identify(self, claim: str, options: str) -> dict[str, Any]:
        """Return the CSI driver of a volume claim, and the volumeHandle of the volume that options mean.

        Args:
            claim: `vendor/driver`.
            options: what FlexVolume calls so, in JSON.

        Raises:
            InvalidRequest: the options are not a JSON object of texts.
            NotFound: no plugin has the claim.
            PluginError: the plugin does not run, or refused the options.
        """
        wanted = codec.read_options(options)
        route = self.registry.route("volume", claim)
        call = Call("volume_id", f"volume:{claim}")
        work = self.volumes.run(route, call, lambda steps: steps.identify(wanted, Secrets()))
        handle = await Front(self.runner).serve(call, work)
        return {"driver": codec.driver_name(cast("VolumeClaim", route.claim)), "volume_handle": handle}

    def status(self) -> list[dict[str, Any]]:
        """Describe every driver, and every claim that has none."""
        unknown = self._csi_node.trouble if self._csi_node is not None else ""
        served = [
            {
                "driver": name,
                "claim": one.driver.claim,
                "inline": cast("VolumeClaim", one.driver.claimed.claim).inline,
                "block": cast("VolumeClaim", one.driver.claimed.claim).block,
                "registered": one.registered,
                "problem": one.problem or (unknown if one.registered else ""),
            }
            for name, one in self.served.items()
        ]
        refused = {"driver": "", "inline": False, "block": False, "registered": False}
        return served + [{**refused, "claim": claim, "problem": why} for claim, why in self.refused.items()]

    async def end(self) -> None:
        """Stop serving; kubelet keeps the registrations for the next daemon."""
        await asyncio.gather(*[one.end(withdraw=False) for one in self.served.values()])


async def _has_account() -> bool:
    """Say whether this is a pod with a ServiceAccount."""
    if "KUBERNETES_SERVICE_HOST" not in os.environ:
        return False
    from nodeplug.kubeapi.access import IN_POD  # noqa: PLC0415 - nobody outside of a pod pays for it

    with suppress(TryAgain):  # no thread is left
        return await aside((IN_POD / "token").exists, "CSI: find the pod's ServiceAccount")
    return False
