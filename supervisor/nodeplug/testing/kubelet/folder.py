"""Kubelet's folders: what a start removes from them, and the socket in the middle.

Owns: device-plugins/ and its kubelet.sock.
Refuses: what is said on the socket.
"""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nodeplug.testing.kubelet.checkpoint import CHECKPOINT

Wipe = Literal["sockets", "files", "nothing"]
"""What a start removes from device-plugins: sockets (new), every file but the checkpoint (old), or nothing."""
TRIES: Final = 100
"""How often a socket is recreated to get the same inode number."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Below `root`, which takes the place of /var/lib/kubelet."""

    root: Path

    @property
    def device_plugins(self) -> Path:
        """Where plugins have their sockets."""
        return self.root / "device-plugins"

    @property
    def socket(self) -> Path:
        """The registration socket."""
        return self.device_plugins / "kubelet.sock"

    @property
    def plugins_registry(self) -> Path:
        """Where the plugin watcher looks."""
        return self.root / "plugins_registry"

    @property
    def podresources_socket(self) -> Path:
        """The socket of the podresources API."""
        return self.root / "pod-resources" / "kubelet.sock"

    def make(self) -> None:
        """Make them, with kubelet's mode."""
        for folder in (self.device_plugins, self.plugins_registry, self.podresources_socket.parent):
            folder.mkdir(mode=0o750, parents=True, exist_ok=True)

    def clean(self, wipe: Wipe) -> None:
        """Remove what a start removes; folders below device-plugins are never touched."""
        for path in self.device_plugins.iterdir():
            if path.is_dir() or path.name == CHECKPOINT:
                continue
            if wipe == "files" or path == self.socket or (wipe == "sockets" and path.is_socket()):
                path.unlink(missing_ok=True)  # as os.RemoveAll, which kubelet calls: its owner may remove it meanwhile
        (self.device_plugins / "DEPRECATION").touch()  # kubelet's hint at the plugin watcher

    def leave_dead_socket(self) -> None:
        """Leave a kubelet.sock behind that refuses connections."""
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(self.socket))
