"""The FUSE programs that run on this machine, for tests that end or stop them."""

import os
from pathlib import Path


def programs(source: Path) -> list[int]:
    """Return the processes of bindfs that serve a folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0] == b"bindfs" and os.fsencode(source) in words:
            found.append(int(path.parts[2]))
    return found
