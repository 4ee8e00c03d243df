"""The sockets on which resources are served: their names and their remains.

Owns: names that never repeat, the removal of what a killed daemon left.
Refuses: serving, and binding (`process.private_socket`).
"""

import hashlib
import logging
from pathlib import Path
from typing import Final

from nodeplug.process.private_socket import fresh_number, is_passing_name, remove_if_dead

LOG: Final = logging.getLogger(__name__)


def socket_path(folder: Path, resource: str) -> Path:
    """Return a socket path that this resource never had since boot.

    `nodeplug-<8 hex of the resource>-<milliseconds since boot, or one more than the last>.sock`: kubelet must not take
    a new server for an old one (kubernetes#121994), also across restarts of the daemon.
    """
    return folder / f"{_stem(resource)}{fresh_number()}.sock"


def _stem(resource: str) -> str:
    return f"nodeplug-{hashlib.sha256(resource.encode()).hexdigest()[:8]}-"


def remove_dead_sockets(folder: Path, resource: str | None = None) -> None:
    """Remove the sockets that a killed daemon left; one that somebody listens on stays.

    Args:
        folder: where they lie.
        resource: whose they are. None: those of every resource; the killed daemon may have offered others, and nobody
            else would remove them.
    """
    served = folder.glob(f"{'nodeplug-' if resource is None else _stem(resource)}*.sock")
    for path in sorted([*served, *(path for path in folder.glob(".*") if is_passing_name(path.name))]):
        if remove_if_dead(path):
            LOG.info("removed the dead socket %s", path)
