"""A node in a folder, and namespaces for the real consumer to run in."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeplug.testing import Sandbox, ScratchNode
from nodeplug.testing.consumers import PrivateNode


@pytest.fixture
def consumer_netns(short_path: Path) -> Iterator[Path]:
    """A network namespace, at a path: the consumer's "host" network, which is not the daemon's."""
    with Sandbox(short_path / "host-netns") as sandbox:
        yield sandbox.path


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    """The daemon with the bundled network plugins, and its entrypoints installed."""
    root = short_path / "n"
    root.mkdir()
    scratch = ScratchNode(root, "[plugins.bridge]\n[plugins.host-local]\n[plugins.loopback]\n")
    with scratch:
        installed = scratch.run("install")
        assert installed.returncode == 0, installed.stderr
        yield scratch
    sys.stdout.write(scratch.log)  # shown when the test fails


def need(**packages: str) -> None:
    """Skip where an executable is missing; Debian's package of each is named by its executable."""
    for binary, package in packages.items():
        if shutil.which(binary) is None:
            pytest.skip(f"{package} is missing: apt-get install {package}")


@pytest.fixture(scope="session")
def make_private_node() -> Callable[..., PrivateNode]:
    """Make nodes in namespaces of their own, for containerd and kubelet; the folder is the daemon's root."""
    need(containerd="containerd", runc="runc", ip="iproute2", busybox="busybox-static")
    if not any(os.access(f"/sys/fs/cgroup/{tree}", os.W_OK) for tree in ("", "memory")):
        pytest.skip("needs control groups that can be written")

    def make(folder: Path, **options: str) -> PrivateNode:
        folder.mkdir()
        return PrivateNode(folder, **options)

    return make


@pytest.fixture
def private_node(make_private_node: Callable[..., PrivateNode], short_path: Path) -> Iterator[PrivateNode]:
    """One of them, for one test."""
    with make_private_node(short_path / "n") as node:
        yield node
