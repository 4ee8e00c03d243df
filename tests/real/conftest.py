"""A node in a folder, and namespaces for the real consumer to run in."""

import shutil
import sys
from collections.abc import Iterator
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


@pytest.fixture
def private_node(short_path: Path) -> Iterator[PrivateNode]:
    """A node in namespaces of its own, for containerd and kubelet; its folder is the root of the daemon's paths."""
    needed = {"containerd": "containerd", "runc": "runc", "ip": "iproute2", "busybox": "busybox-static"}
    for binary, package in needed.items():
        if shutil.which(binary) is None:
            pytest.skip(f"{package} is missing: apt-get install {package}")
    root = short_path / "n"
    root.mkdir()
    with PrivateNode(root) as node:
        yield node
