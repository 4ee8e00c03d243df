"""A container with two interfaces that other plugins made."""

import shutil

import pytest
from tests.node.vrf.lab import Pod

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.vrf.plugin import Vrf, VrfPluginConfig


@pytest.fixture(autouse=True)
def _iproute2() -> None:
    if shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin:/bin") is None:
        pytest.skip("iproute2 is missing: apt-get install iproute2")


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
