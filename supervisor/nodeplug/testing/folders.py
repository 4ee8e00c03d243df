"""Temporary folders, and their removal.

Owns: that nothing is removed which is only mounted there: behind a bind mount are somebody else's files.
Refuses: to follow what it could not unmount.
"""

import shutil
from pathlib import Path

from nodeplug.contract.errors import TryAgain
from nodeplug.contract.mounts import mounts, unmount


def mounted_below(folder: Path) -> list[str]:
    """Return the mount points in a folder, and the folder itself if it is one, in mount order."""
    return [mount.target for mount in mounts() if Path(mount.target).is_relative_to(folder)]


def unmount_below(folder: Path) -> None:
    """Unmount what a daemon that ended left in its folder, the last mount first.

    Raises:
        PluginError: the kernel refused.
    """
    for target in reversed(mounted_below(folder)):
        unmount(target, lazy=True)


def remove(folder: Path) -> None:
    """Remove a folder and everything in it; succeed if it is not there.

    Raises:
        TryAgain: something is mounted there; nothing was removed.
    """
    if left := mounted_below(folder.resolve()):
        raise TryAgain(
            f"{folder} stays: {', '.join(left)} is still mounted, and removing the folder would empty it too"
        )
    shutil.rmtree(folder, ignore_errors=True)
