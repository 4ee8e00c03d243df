"""The paths of one card's MPS control daemon.

Owns: the layout of the card's run folder.
Refuses: to make anything.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.mps.record import recorded


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one card's daemon; clients reach it through `pipes`."""

    root: Path

    @property
    def pipes(self) -> Path:
        """Its socket and pipes (CUDA_MPS_PIPE_DIRECTORY)."""
        return self.root / "pipe"

    @property
    def shm(self) -> Path:
        """The /dev/shm that it shares with its clients: a mount point."""
        return self.root / "shm"

    @property
    def logs(self) -> Path:
        """Its logs (CUDA_MPS_LOG_DIRECTORY): a mount point."""
        return self.root / "log"

    @property
    def output(self) -> Path:
        """What it prints. MPS itself writes `control.log` and `server.log` to the same folder."""
        return self.logs / "output.log"

    @property
    def libraries(self) -> Path:
        """Links to the driver's own libraries, where the driver is not the node's."""
        return self.root / "lib"

    @property
    def record(self) -> Path:
        """The record of its process, for the next start of nodeplug."""
        return self.root / "daemon.json"

    @property
    def ready(self) -> bool:
        """Whether clients can connect."""
        return (self.pipes / "control").exists()

    @staticmethod
    def of(run_dir: Path, uuid: Uuid, former: Sequence[Path] = ()) -> "Folders":
        """Return the folders of a card: where its daemon runs or was recorded, else the plugin's own.

        A socket's path has at most 107 bytes, hence the key and not the UUID.

        Args:
            run_dir: the plugin's own.
            uuid: of the card.
            former: those of sections that had the cards before; containers have what is in them mounted.
        """
        found = [Folders(one / "mps" / card_key(uuid)) for one in (run_dir, *former)]
        return max(found, key=lambda one: (recorded(one.record) is not None, one.record.exists()))
