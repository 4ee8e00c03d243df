"""The labels of the node as a file for node-feature-discovery, whose worker makes them labels of the Node.

Owns: the file's text (`name=value`, a line each, as its source `local` reads it), and when it changes.
Refuses: the labels (`labels` makes them), and to remove the file: a daemon that is replaced leaves the node as it is.
"""

from dataclasses import dataclass, field

from nodeplug import Host
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.inventory import Inventory
from nodeplug_gpu.labels import labels
from nodeplug_gpu.replaced_file import replace_file


@dataclass(slots=True)
class FeatureFile:
    """Keeps the file up to date; it is empty on a node without cards.

    Attributes:
        config: names the file, or none.
        host: for the log.
    """

    config: GpuConfig
    host: Host
    _complaint: str = field(default="", init=False)

    def reconcile(self, inventory: Inventory) -> None:
        """Write the file. While the driver has not answered, or hangs, it stays: the cards are still there."""
        path = self.config.feature_file
        if path is None or inventory.snapshot.state in {"starting", "failed"}:
            return
        lines = [f"{name}={value}\n" for name, value in sorted(labels(inventory.snapshot, self.config).items())]
        try:
            replace_file(path, "".join(lines).encode())
        except OSError as error:
            self._complain(f"the labels of the cards cannot be written for node-feature-discovery: {error}")
        else:
            self._complaint = ""

    def stop(self) -> None:
        """Leave the file to the next daemon."""

    def _complain(self, text: str) -> None:
        if text != self._complaint:
            self.host.log.warning("%s", text)
        self._complaint = text
