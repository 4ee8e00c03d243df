"""A host with two bridges and the firewall of this build."""

from collections.abc import Iterator

import pytest
from tests.node.firewall.lab import Lab, tell_the_way
from tests.programs import need

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig


@pytest.fixture(autouse=True)
def _tools() -> None:
    need("nft", "iptables")


@pytest.fixture
def firewall(scratch: ScratchCni) -> Iterator[Firewall]:
    plugin = Firewall(FirewallConfig(), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


@pytest.fixture
def lab(scratch: ScratchCni, bridge: Bridge, firewall: Firewall, outside: Netns) -> Lab:
    tell_the_way(outside)
    return Lab(scratch, bridge, firewall, outside)
