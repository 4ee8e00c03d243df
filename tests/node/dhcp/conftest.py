"""A host with the plugin, containers that are wired to a bridge, and a place for a server."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from tests.node.dhcp.lab import Place, wire
from tests.programs import need

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.dhcp.plugin import Dhcp, DhcpPluginConfig

Pod = Callable[[], Netns]


@pytest.fixture
def dnsmasq() -> None:
    need("dnsmasq", "nsenter")


@pytest.fixture
def place(scratch: ScratchCni) -> Place:
    return Place(scratch)


@pytest.fixture
def pod(scratch: ScratchCni) -> Pod:
    """Make containers whose eth0 is down, as a plugin leaves it that calls dhcp."""
    numbers = count()

    def make() -> Netns:
        netns = scratch.container()
        wire(scratch, netns, "eth0", f"vpod{next(numbers)}")
        return netns

    return make


@pytest.fixture
def plugin(scratch: ScratchCni) -> Iterator[Dhcp]:
    made = Dhcp(DhcpPluginConfig(timeout=30), scratch.host)
    scratch.on_host(made.start)
    yield made
    made.stop()
