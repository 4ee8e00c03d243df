"""What makes a container a client of a card's MPS control daemon.

Owns: the folders that client and daemon share, and the environment with the limits.
Refuses: to start anything.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeplug import DeviceMount, Grant
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.ids import card_key

PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks by default, inside the container
FIRST_VOLTA: Final = (7, 0)
"""Compute capability from which MPS has limits of memory and isolated address spaces."""


@dataclass(frozen=True, slots=True)
class Folders:
    """The folders of one card's daemon; clients reach it through `pipes`."""

    root: Path

    @property
    def pipes(self) -> Path:
        """Its socket and pipes (CUDA_MPS_PIPE_DIRECTORY)."""
        return self.root / "pipe"

    @property
    def logs(self) -> Path:
        """Its logs (CUDA_MPS_LOG_DIRECTORY)."""
        return self.root / "log"

    @property
    def libraries(self) -> Path:
        """Links to the driver's own libraries, where the driver is not the node's."""
        return self.root / "lib"

    @property
    def record(self) -> Path:
        """Who it is, for the next start of nodeplug."""
        return self.root / "daemon.json"

    @property
    def ready(self) -> bool:
        """Whether clients can connect."""
        return (self.pipes / "control").exists()

    @staticmethod
    def of(run_dir: Path, uuid: Uuid) -> "Folders":
        """Return the folders of a card. A socket's path has at most 107 bytes, hence the key and not the UUID."""
        return Folders(run_dir / "mps" / card_key(uuid))


def client(folders: Folders, card: Card, memory: int, share: float, *, threads: bool) -> Grant:
    """Return what makes a container a client with limits.

    Args:
        folders: of the card's daemon.
        card: the only one that the container sees, hence device 0 there.
        memory: bytes that each process may allocate.
        share: of the card, above 0 and up to 1.
        threads: limit multiprocessors by the same share.
    """
    env = {"CUDA_MPS_PIPE_DIRECTORY": PIPES}
    if card.compute_capability >= FIRST_VOLTA:
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory >> 20}M"
        if threads:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, round(100 * share)))
    mounts = (
        # To connect takes write access to the socket, not to its folder: there a client could put a socket of its own.
        DeviceMount(str(folders.pipes), PIPES, read_only=True),
        DeviceMount("/dev/shm", "/dev/shm", read_only=False),  # noqa: S108 - client and daemon share memory there
    )
    return Grant(env=env, mounts=mounts)
