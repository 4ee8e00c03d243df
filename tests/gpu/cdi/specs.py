"""What writes CDI specs, on a node that a test changes.

Owns: the cards, a folder for specs, and what the daemon's loop would ask.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from nodeplug import NotReady
from nodeplug.testing import host
from nodeplug_gpu.access import GpuDevice, NodePaths, grant
from nodeplug_gpu.cards import Card, MigInstance, Snapshot, Uuid
from nodeplug_gpu.cdi.specs import CdiSpecs
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.pool import Pool, PoolMember

INSTANCE = MigInstance(Uuid("MIG-1"), "1g.10gb", 10 << 30, 7, 0)
CARD = Card(Uuid("GPU-1"), 0, 3, "X", 80 << 30)
SPLIT = Card(Uuid("GPU-2"), 1, 4, "X", 80 << 30, mig=True, instances=(INSTANCE,))


class Specs:
    def __init__(self, folder: Path, paths: NodePaths, section: str = "gpu", hook: str = "none", **access: Any) -> None:
        self.folder = folder / "cdi"
        values = {"cdi": "field", "cdi_folder": str(self.folder), **access}
        config = GpuConfig.model_validate(
            {
                "driver_root": str(folder / "driver"),
                "cdi_hook": hook,
                "resources": [
                    {"resource": "example.com/gpu", "sharing": "exclusive", "access": values},
                    {"resource": "example.com/mig", "sharing": "mig", "access": values},
                ],
            }
        )
        self.told: list[str] = []
        self.specs = CdiSpecs(config, paths, host(folder, plugin=section), lambda: self.told.append("changed"))
        self.entries = {entry.resource: entry for entry in config.resources}

    def inventory(self, *cards: Card, state: Any = "running") -> Inventory:
        pools = {
            "example.com/gpu": Pool(tuple(PoolMember(card) for card in cards if not card.mig)),
            "example.com/mig": Pool(tuple(PoolMember(card) for card in cards if card.mig)),
        }
        return Inventory(Snapshot(state, cards=cards), pools)

    def entry(self, card: Card) -> Any:
        return self.entries["example.com/mig" if card.mig else "example.com/gpu"]

    def why(self, card: Card) -> str:
        return self.specs.not_ready_reason(self.entry(card), card.uuid)

    def refusal(self, card: Card) -> str:
        """Ask for a card, and return why it is refused."""
        entry = self.entry(card)
        try:
            self.specs.require(entry, grant(entry.access, [GpuDevice(card)], self.specs.paths))
        except NotReady as error:
            return error.message
        return ""

    def reconcile(self, *cards: Card, state: Any = "running") -> dict[str, Any] | None:
        self.specs.reconcile(self.inventory(*cards, state=state))
        found = list(self.folder.iterdir()) if self.folder.exists() else []
        return json.loads(found[0].read_text()) if found else None

    def edits(self, *cards: Card, version: str = "570.1.2") -> dict[str, Any]:
        """Return what every container gets by the spec with a driver of some version."""
        inventory = self.inventory(*cards)
        self.specs.reconcile(replace(inventory, snapshot=replace(inventory.snapshot, driver_version=version)))
        (path,) = self.folder.iterdir()
        return dict(json.loads(path.read_text())["containerEdits"])
