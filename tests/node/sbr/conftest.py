"""A container with two interfaces: eth0, where the default route leads, and net1, which sbr is for."""

import pytest
from tests.node.sbr.lab import FOUR, SIX, Pod
from tests.programs import need

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.sbr.plugin import Sbr, SbrConfig


@pytest.fixture(autouse=True)
def _iproute2() -> None:
    need("ip")


@pytest.fixture
def sbr(scratch: ScratchCni) -> Sbr:
    return Sbr(SbrConfig(), scratch.host)


@pytest.fixture
def pod(scratch: ScratchCni, sbr: Sbr) -> Pod:
    made = Pod(scratch, sbr, scratch.container(), FOUR, SIX)
    made.give("eth0", "10.7.0.2/24", "fd07::2/64")
    made.run("route", "add", "default", "via", "10.7.0.1")
    made.run("route", "add", "default", "via", "fd07::1")
    made.make_interface()
    return made
