"""A container with a veth pair that another plugin made, and bandwidth for it."""

import pytest
from tests.node.bandwidth.lab import Pod
from tests.programs import need

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bandwidth.plugin import Bandwidth, BandwidthConfig


@pytest.fixture(autouse=True)
def _iproute2() -> None:
    need("ip", "tc")


@pytest.fixture
def bandwidth(scratch: ScratchCni) -> Bandwidth:
    return Bandwidth(BandwidthConfig(), scratch.host)


@pytest.fixture
def pod(scratch: ScratchCni, bandwidth: Bandwidth) -> Pod:
    """A container whose pair is host0 and eth0."""
    made = Pod(scratch, bandwidth, scratch.container())
    made.pair("host0", "eth0")
    return made
