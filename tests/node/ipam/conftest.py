"""The plugin host-local over a folder of its own."""

from pathlib import Path

import pytest

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.host_local import HostLocal, HostLocalConfig


@pytest.fixture
def host_local(scratch: ScratchCni) -> HostLocal:
    return HostLocal(HostLocalConfig(data_dir=scratch.folder / "networks"), scratch.host)


@pytest.fixture
def folder(scratch: ScratchCni) -> Path:
    return scratch.folder / "networks" / "net"
