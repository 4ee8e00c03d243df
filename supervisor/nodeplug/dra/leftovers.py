"""Sockets of drivers whose daemons have ended: kubelet counts one as an instance for as long as its file is there.

Owns: where sockets of drivers lie, and removing those behind which nobody listens.
Refuses: to serve; it is imported on nodes that serve no claims, to find what is left of some.
"""

import logging
from pathlib import Path
from typing import Final

from nodeplug.dra.names import DOMAIN
from nodeplug.process.private_socket import remove_if_dead

LOG: Final = logging.getLogger(__name__)
REGISTRATION: Final = "-reg.sock"


def remove_dead_sockets(plugins: Path, registrations: Path, driver: str = f"*.{DOMAIN}") -> None:
    """Remove the sockets of instances that have ended. May block.

    Args:
        plugins: the folder of drivers in kubelet's root.
        registrations: the plugin watcher's folder.
        driver: whose; by default of every driver of this program, also of sections that are gone.
    """
    for path in (*registrations.glob(f"{driver}-*{REGISTRATION}"), *plugins.glob(f"{driver}/dra-*.sock")):
        if remove_if_dead(path):
            LOG.info("removed the dead socket %s", path)
