"""A host with the bridge and the port mappings of this build."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.node.portmap.lab import Lab, end_servers

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig


@pytest.fixture(autouse=True)
def _servers_end() -> Iterator[None]:
    yield
    end_servers()


@pytest.fixture
def portmap(scratch: ScratchCni) -> Iterator[Portmap]:
    plugin = Portmap(PortmapConfig(), scratch.host)
    scratch.on_host(plugin.start)
    yield plugin
    plugin.stop()


@pytest.fixture
def lab(
    scratch: ScratchCni, bridge: Bridge, config: Callable[..., dict[str, Any]], portmap: Portmap, outside: Netns
) -> Lab:
    return Lab(scratch, bridge, config(), portmap, outside)
