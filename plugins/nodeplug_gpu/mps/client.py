"""What makes a container a client of a card's MPS control daemon.

Owns: its mounts, and the environment with the limits.
Refuses: to start anything.
"""

from typing import Final

from nodeplug import DeviceMount, Grant
from nodeplug_gpu.cards import Card
from nodeplug_gpu.limits import before_volta
from nodeplug_gpu.mps import tmpfs
from nodeplug_gpu.mps.folders import Folders

PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - where CUDA looks by default, inside the container


def client(folders: Folders, card: Card, memory: int, share: float, *, threads: bool) -> Grant:
    """Return what makes a container a client with limits, where the card has them.

    Args:
        folders: of the card's daemon.
        card: the only one that the container sees, hence device 0 there.
        memory: bytes that each process may allocate; 0 for no limit.
        share: of the card, above 0 and up to 1.
        threads: limit multiprocessors by the same share.

    Raises:
        NotReady: what the card's daemon shares with its clients is not there.
    """
    env = {"CUDA_MPS_PIPE_DIRECTORY": PIPES}
    if not before_volta(card):
        if memory >> 20:  # of a card whose memory is not known there is no part
            env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = f"0={memory >> 20}M"
        if threads:
            env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(max(1, round(100 * share)))
    mounts = (
        # Connecting takes write access to the socket, not to its folder, where a client could put its own socket.
        DeviceMount(str(folders.pipes), PIPES, read_only=True),
        DeviceMount(tmpfs.for_clients(folders), tmpfs.DEV_SHM, read_only=False),
    )
    return Grant(env=env, mounts=mounts)
