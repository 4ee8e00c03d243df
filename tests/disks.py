"""Disks for tests: a filesystem in a file, mounted while a block runs."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeplug.testing.waiting import until

TOOLS = {"xfs": "xfsprogs", "ext4": "e2fsprogs", "btrfs": "btrfs-progs"}
PATH = "/usr/sbin:/sbin:/usr/bin:/bin"


@contextmanager
def attached_disk(folder: Path, fs_type: str, size: str) -> Iterator[Path]:
    """Yield a folder on a disk of its own; skip where the tools are missing."""
    tool = f"mkfs.{fs_type}"
    if shutil.which(tool, path=PATH) is None:
        pytest.skip(f"{tool} is missing: apt-get install {TOOLS[fs_type]}")
    image = folder.with_suffix(".disk")
    folder.mkdir()
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run([tool, "-q", str(image)], check=True, capture_output=True, env={"PATH": PATH})
    subprocess.run(["mount", "-o", "loop", str(image), str(folder)], check=True)
    try:
        yield folder.resolve()
    finally:
        _umount(folder)
        image.unlink()


def _umount(folder: Path) -> None:
    """Unmount a disk; what was closed a moment ago, in another thread, may keep it busy."""

    def unmounted() -> bool:
        return subprocess.run(["umount", str(folder)], capture_output=True, check=False).returncode == 0

    until(unmounted)
