"""Disks for tests: a filesystem in a file, mounted while a block runs."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.programs import need

from nodeplug.testing.waiting import until


@contextmanager
def attached_disk(folder: Path, fs_type: str, size: str) -> Iterator[Path]:
    """Yield a folder on a disk of its own; skip where the tools are missing."""
    tool = f"mkfs.{fs_type}"
    need(tool, "mount", "umount")
    image = folder.with_suffix(".disk")
    folder.mkdir()
    subprocess.run(["truncate", "-s", size, str(image)], check=True)
    subprocess.run([tool, "-q", str(image)], check=True, capture_output=True)
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
