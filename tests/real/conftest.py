"""A node in a folder, and a network namespace for the real consumer to run in."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import Sandbox, ScratchNode


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path: sockets below it have at most 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def consumer_netns(folder: Path) -> Iterator[Path]:
    """A network namespace, at a path: the consumer's "host" network, which is not the daemon's."""
    with Sandbox(folder / "host-netns") as sandbox:
        yield sandbox.path


@pytest.fixture
def node(folder: Path) -> Iterator[ScratchNode]:
    """The daemon with the bundled network plugins, and its entrypoints installed."""
    root = folder / "n"
    root.mkdir()
    scratch = ScratchNode(root, "[plugins.bridge]\n[plugins.host-local]\n[plugins.loopback]\n")
    with scratch:
        installed = scratch.run("install")
        assert installed.returncode == 0, installed.stderr
        yield scratch
    sys.stdout.write(scratch.log)  # shown when the test fails
