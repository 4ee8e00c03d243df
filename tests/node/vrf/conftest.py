"""A container with two interfaces that other plugins made."""

import pytest
from tests.link_kinds import need_kind
from tests.node.vrf.lab import Pod
from tests.programs import need

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.vrf.plugin import Vrf, VrfPluginConfig


@pytest.fixture(autouse=True)
def _iproute2() -> None:
    need("ip")


@pytest.fixture
def pod(scratch: ScratchCni) -> Pod:
    made = Pod(scratch, Vrf(VrfPluginConfig(), scratch.host), scratch.container())
    made.make("net1")
    return made


@pytest.fixture
def vrf_pod(pod: Pod) -> Pod:
    """The same, where the kernel has VRFs."""
    need_kind("vrf")
    return pod
