"""A node that has a container runtime, nodeplug as it is published, and nothing else: no CNI plugin of anybody."""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from nodeplug.testing import ScratchNode
from nodeplug.testing.consumers import Containerd, PrivateNode

CONFIGS = Path(__file__).parents[2] / "configs"
PUBLISHED = CONFIGS / "cni" / "10-nodeplug.conflist"
NETWORK = (CONFIGS / "plugins.d" / "net.toml").read_text()


@dataclass(frozen=True)
class Bare:
    """The daemon with its published configuration, installed, and a runtime that knows no other folder."""

    private: PrivateNode
    daemon: ScratchNode
    containerd: Containerd

    @property
    def watched(self) -> tuple[Path, Path]:
        return self.private.folder / "var", self.daemon.paths.run

    def end(self, sandbox: str) -> None:
        self.containerd.cri.stop(sandbox)
        self.containerd.cri.remove(sandbox)


@pytest.fixture
def bare(private_node: PrivateNode, short_path: Path, runtime: Path | None) -> Iterator[Bare]:
    (short_path / "c").mkdir()
    with ScratchNode(private_node.folder, NETWORK, within=private_node.command()) as daemon:
        paths = daemon.paths
        assert not paths.cni_bin.exists() or list(paths.cni_bin.iterdir()) == []
        installed = daemon.run("install", "--conflist", str(PUBLISHED))
        assert installed.returncode == 0, installed.stderr
        with Containerd(private_node, short_path / "c", paths.cni_bin, paths.cni_conf, programs=runtime) as containerd:
            yield Bare(private_node, daemon, containerd)
    sys.stdout.write(daemon.log)  # shown when the test fails


def test_pods_start_on_the_published_configuration_and_leave_nothing(bare: Bare) -> None:
    bare.end(bare.containerd.cri.run("first"))  # makes what stays on purpose, such as the bridge
    before = bare.private.inventory(*bare.watched)
    sandbox = bare.containerd.cri.run("pod")
    bare.private.run("ping", "-c", "1", "-W", "2", bare.containerd.cri.address(sandbox))
    assert "LOOPBACK,UP" in bare.containerd.execute(sandbox, "/bin/ip", "link", "show", "lo")
    bare.end(sandbox)
    assert bare.private.inventory_since(before, *bare.watched) == []
