"""A host with two bridges and the firewall of this build."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.firewall.lab import Lab, tell_the_way

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig


@pytest.fixture(autouse=True)
def _tools() -> None:
    for tool in ("nft", "iptables"):
        if not Path("/usr/sbin", tool).exists():
            pytest.skip(f"{tool} is missing: apt-get install nftables iptables")


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
