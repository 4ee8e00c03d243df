"""A container with two interfaces that other plugins made."""

import pytest
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
    import subprocess  # noqa: PLC0415

    try:
        pod.run("link", "add", "probe0", "type", "vrf", "table", "99")
    except subprocess.CalledProcessError:
        pytest.skip("needs a kernel with links of kind vrf")
    pod.run("link", "del", "probe0")
    return pod
