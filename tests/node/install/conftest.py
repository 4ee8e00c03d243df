"""The runtime's and kubelet's folders, and installations into them."""

from pathlib import Path

import pytest

from nodeplug.config import Supervisor
from nodeplug.install.files import install, uninstall
from nodeplug.install.report import Report
from nodeplug.install.scripts import MARKER, Scripts


class Node:
    """The folders of a node, and what is installed there."""

    ANSWER = b'{"status":"Success","capabilities":{"attach":false}}'
    CONFLIST = b'{"cniVersion":"1.0.0","name":"pods","plugins":[{"type":"nodeplug-bridge"}]}'

    def __init__(self, root: Path) -> None:
        self.root = root
        self.paths = Supervisor(root=root, flexvolume_dir=Path("/kubelet/exec")).paths
        self.cni_bin, self.cni_conf, self.flex = self.paths.cni_bin, self.paths.cni_conf, self.paths.flexvolume

    @staticmethod
    def scripts(text: str = "one") -> Scripts:
        body = b"#!/bin/sh\n" + MARKER + f"\necho {text} # {text * 4000}\n".encode()
        return Scripts(body, body)

    def install(
        self,
        *,
        cni: tuple[str, ...] = ("nodeplug-bridge", "nodeplug-loopback"),
        drivers: tuple[str, ...] = ("nodeplug/loopfile",),
        text: str = "one",
        conflists: dict[str, bytes] | None = None,
        prune: bool = True,
        in_use: tuple[str, ...] = (),
    ) -> Report:
        return install(
            cni=cni,
            drivers=dict.fromkeys(drivers, self.ANSWER),
            paths=self.paths,
            scripts=self.scripts(text),
            conflists=conflists,
            prune=prune,
            in_use=in_use,
        )

    def uninstall(self) -> Report:
        return uninstall(self.paths)

    def everything(self) -> dict[str, tuple[int, int]]:
        """Return inode and change time of each path: what is equal here has seen no event."""
        found = ((path, path.lstat()) for path in self.root.rglob("*"))
        return {str(path): (status.st_ino, status.st_ctime_ns) for path, status in found}

    @staticmethod
    def names(folder: Path) -> list[str]:
        return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)
