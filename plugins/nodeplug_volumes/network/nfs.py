"""nfs: a folder of an NFS server.

Owns: what is mounted, and what kubelet's own nfs volumes lack: an allow-list of servers and mount options, a time limit
for mount(8), and a node that goes on when the server does not.
Refuses: anything else than a server, a path, and listed mount options.

Options: `server` (a name, or an address; IPv6 in brackets), `path` (absolute), `mountOptions` ("vers=4.1,nconnect=4").
"""

import re
from collections.abc import Mapping
from typing import ClassVar, Final

from pydantic import Field

from nodeplug import InvalidRequest
from nodeplug.fields import FlexDriver
from nodeplug_volumes.network import words
from nodeplug_volumes.network.volumes import NetworkConfig, NetworkVolumes

SERVER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]{0,252}|\[[0-9A-Fa-f:.]{2,64}\]")
_PATH: Final = re.compile(r"/[^\0-\x1f\x7f]{0,1023}")


class NfsConfig(NetworkConfig):
    """`[plugins.nfs.config]`."""

    driver: FlexDriver = Field("nodeplug/nfs", description="the FlexVolume driver's name, vendor/driver")


class Nfs(NetworkVolumes):
    """The plugin."""

    Config = NfsConfig
    fs_type = "nfs"
    helper = "mount.nfs"
    package = "nfs-common (Debian) or nfs-utils"
    options = ("server", "path")
    known_words: ClassVar[Mapping[str, str]] = words.NFS

    def source(self, options: Mapping[str, str]) -> str:
        """Return server and path."""
        server, path = self.server(options), options.get("path", "")
        if not SERVER.fullmatch(server):
            raise InvalidRequest(f"option server is {server[:80]!r}; it must be a name or an address, IPv6 in brackets")
        if not _PATH.fullmatch(path) or ".." in path.split("/"):
            raise InvalidRequest(f"option path is {path[:80]!r}; it must be absolute, without '..'")
        return f"{server}:{path}"
