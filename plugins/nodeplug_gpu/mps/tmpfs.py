"""What is mounted for one card's control daemon: the memory that it shares with its clients, and room for its logs.

Owns: both tmpfs in the card's run folder, their bounds and their end. They are mounted where nodeplug is, so that the
container runtime sees them; a container gets the folder as /dev/shm, the daemon through `launch`.
Refuses: to look at the daemon or its clients; the caller knows when nothing uses the mounts any more.

Tenants write to one and cause log lines in the other: neither may exhaust the memory of the node, or fill /run.
"""

import os
from pathlib import Path
from typing import Final

from nodeplug import NotReady, PluginError, mount, mounted_at, unmount
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record

DEV_SHM: Final = "/dev/shm"  # noqa: S108 - what daemons of earlier versions share with their clients
LOG_SIZE: Final = 4 << 20
"""Bytes of all logs of one daemon."""
_PAGE: Final = 4096


def mount_memory(folders: Folders, size: int, *, fresh: bool) -> None:
    """Mount what the daemon shares with clients of any user; succeed if it is mounted already.

    Args:
        folders: of the card.
        size: bytes.
        fresh: nothing uses what may be mounted already, such as what a killed start left behind.

    Raises:
        PluginError: the kernel refused.
    """
    if fresh:
        unmount(str(folders.shm), lazy=True)
    _mount(folders.shm, size, "1777")


def mount_logs(folders: Folders) -> None:
    """Mount the room for logs, for root alone; succeed if it is mounted already.

    Raises:
        PluginError: the kernel refused.
        OSError: what lies in the folder cannot be removed.
    """
    if mounted_at(str(folders.logs)) is None:
        # Of an earlier version, in /run itself, and hidden from now on.
        for file in (folders.root / "control.log", *(folders.logs.iterdir() if folders.logs.is_dir() else ())):
            file.unlink(missing_ok=True)
    _mount(folders.logs, LOG_SIZE, "0700")


def _mount(folder: Path, size: int, mode: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if mounted_at(str(folder)) is not None:
        return
    folder.chmod(0o700)  # without the mount nobody may use it
    # Empty files cost kernel memory that `size` does not count.
    options = ["nosuid", "nodev", "noexec", f"size={size}", f"mode={mode}", f"nr_inodes={size // _PAGE}"]
    try:
        mount("tmpfs", str(folder), "tmpfs", options=options)
    except PluginError as error:
        raise PluginError(f"{error.message}; it needs root with CAP_SYS_ADMIN, in a pod `privileged: true`") from error


def unmount_all(folders: Folders) -> None:
    """Unmount both; succeed if nothing is mounted. Whoever still has one of them open keeps it.

    Raises:
        PluginError: the kernel refused.
    """
    for folder in (folders.shm, folders.logs):
        unmount(str(folder), lazy=True)


def is_shared(folders: Folders) -> bool:
    """Whether the memory that daemon and clients share is mounted."""
    return mounted_at(str(folders.shm)) is not None


def is_hidden(folders: Folders) -> bool:
    """Whether the node's first process does not have the memory mounted: then no container runtime sees it.

    False where that cannot be known, as in a container without the host's processes.
    """
    mine = mounted_at(str(folders.shm))
    try:
        table = Path("/proc/1/mountinfo").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return False
    return mine is not None and all(line.split(" ")[2] != mine.device for line in table.splitlines())


def for_clients(folders: Folders) -> str:
    """Return the host path of what a container gets as /dev/shm: what the card's daemon has there.

    Raises:
        NotReady: no daemon was started, or what it has is no longer mounted.
    """
    record = Record.read(folders.record)
    if record is None:
        raise NotReady("the card's MPS control daemon does not run")
    if record.shm is None:
        return DEV_SHM
    if not is_shared(folders):  # a container could fill /run through the plain folder
        raise NotReady(f"{folders.shm}, which MPS clients have as /dev/shm, is no longer mounted")
    return str(folders.shm)


def trim_logs(folders: Folders) -> None:
    """Empty the largest log when less than a quarter of the space is left: recent lines are worth more than old ones.

    Raises:
        OSError: a log cannot be emptied.
    """
    room = os.statvfs(folders.logs)
    if mounted_at(str(folders.logs)) is None or room.f_bavail * 4 > room.f_blocks:
        return
    logs = [file for file in folders.logs.iterdir() if file.is_file()]
    # A program that does not append continues at its former offset, and the hole before it takes no memory.
    os.truncate(max(logs, key=lambda file: file.stat().st_blocks), 0)
