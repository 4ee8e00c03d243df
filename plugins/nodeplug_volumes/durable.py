"""Files that survive a loss of power.

Owns: writing them whole or not at all.
Refuses: to know what is in them.
"""

import os
from pathlib import Path


def write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all, also after a loss of power; OSError if that fails."""
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_bytes(content)
    sync(fresh)
    fresh.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Write what the kernel holds of a file or folder (fsync(2)); OSError if that fails."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
