"""A node in a folder, and a network namespace for the real consumer to run in."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import Sandbox, ScratchNode


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
