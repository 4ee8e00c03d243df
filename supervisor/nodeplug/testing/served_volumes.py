"""What a node's status says of a volume claim: its CSI driver, and the ids of its volumes.

Owns: waiting until the daemon serves a driver.
Refuses: calls (`csi_caller`).
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from nodeplug.testing.scratch_node import ScratchNode

_PAUSE: Final = 0.05


def csi_driver(node: ScratchNode, claim: str, seconds: float) -> Mapping[str, Any] | None:
    """Return the row of a claim's CSI driver, once it is there; None if it has no driver, or none came in time."""
    end = time.monotonic() + seconds
    while True:
        rows: list[dict[str, Any]] = node.status()["csi"]
        # Without a word about kubelet its sockets are not there yet.
        found = next((row for row in rows if row["claim"] == claim and (row["registered"] or row["problem"])), None)
        if found is not None:
            return found if found["driver"] else None
        if time.monotonic() > end:
            return None
        time.sleep(_PAUSE)


def volume_id_at(node: ScratchNode, target: Path) -> str:
    """Return the id of the volume that is published at a path; empty if there is none."""
    rows: list[dict[str, Any]] = node.status()["volumes"]
    return next((str(row["volume_id"]) for row in rows if str(target) in row["targets"]), "")
