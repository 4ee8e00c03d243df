"""Files of the node that others read at any time.

Owns: writing one, so that a reader finds the former text or the new one.
Refuses: to write what is there already, so that nobody who watches is woken.
"""

import os
from pathlib import Path

from nodeplug import read_bounded


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file in one step, with its folder where that is missing; readers pass over names that begin with a dot.

    Raises:
        OSError: it cannot be written; the former one is as it was.
    """
    if _read(path) == data:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.chmod(0o644)
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)


def _read(path: Path) -> bytes | None:
    try:
        return read_bounded(path)
    except OSError:
        return None
