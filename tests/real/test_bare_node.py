"""A node that has a container runtime, nodeplug as it is published, and nothing else: no CNI plugin of anybody."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
from tests.real.consumers import Containerd, PrivateNode

from nodeplug.testing import ScratchNode

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

    @property
    def addresses(self) -> set[str]:
        """The reserved ones."""
        folder = self.daemon.root / "var" / "lib" / "cni" / "networks" / "nodeplug"
        return {path.name for path in folder.glob("*") if not path.name.startswith(("last", "lock"))}


@pytest.fixture
def make_bare(
    private_node: PrivateNode, short_path: Path, runtime: Path | None
) -> Callable[[str], AbstractContextManager[Bare]]:
    """Make a node with a network configuration of the daemon."""

    @contextmanager
    def make(network: str) -> Iterator[Bare]:
        (short_path / "c").mkdir()
        with ScratchNode(private_node.folder, network, beside=private_node.pid, fork=True) as daemon:
            paths = daemon.paths
            assert not paths.cni_bin.exists() or list(paths.cni_bin.iterdir()) == []
            installed = daemon.run("install", "--conflist", str(PUBLISHED))
            assert installed.returncode == 0, installed.stderr
            folders = short_path / "c", paths.cni_bin, paths.cni_conf
            with Containerd(private_node, *folders, programs=runtime) as containerd:
                yield Bare(private_node, daemon, containerd)
        sys.stdout.write(daemon.log)  # shown when the test fails

    return make


@pytest.fixture
def bare(make_bare: Callable[[str], AbstractContextManager[Bare]]) -> Iterator[Bare]:
    with make_bare(NETWORK) as node:
        yield node


@pytest.fixture
def without_loopback(make_bare: Callable[[str], AbstractContextManager[Bare]]) -> Iterator[Bare]:
    """A node where nobody serves `loopback`."""
    with make_bare(NETWORK.replace('where_absent = ["loopback"]', "where_absent = []")) as node:
        yield node


def test_pods_start_on_the_published_configuration_and_leave_nothing(bare: Bare) -> None:
    bare.end(bare.containerd.cri.run("first"))  # makes what stays on purpose, such as the bridge
    before = bare.private.inventory(*bare.watched)
    sandbox = bare.containerd.cri.run("pod")
    bare.private.run("ping", "-c", "1", "-W", "2", bare.containerd.cri.address(sandbox))
    assert "LOOPBACK,UP" in bare.containerd.execute(sandbox, "/bin/ip", "link", "show", "lo")
    bare.end(sandbox)
    assert bare.private.inventory_since(before, *bare.watched) == []


# Before 2.0 it keeps what it began, and sends the DEL later.
@pytest.mark.parametrize("generation", ["current"], indirect=True)
def test_tries_that_the_runtime_gives_up_without_a_del_leave_nothing(without_loopback: Bare) -> None:
    node = without_loopback
    for _ in range(5):
        with pytest.raises(grpc.RpcError, match="loopback"):
            node.containerd.cri.run("pod")
    end = time.monotonic() + 60
    while node.addresses or node.daemon.status()["attachments"]:
        assert time.monotonic() < end, (node.addresses, node.daemon.status()["attachments"])
        time.sleep(0.2)
