"""host-device on a host: an end of a veth pair stands for the card that a container gets."""

from typing import Any

import pytest
from tests.node.links.host_device.card import MAC, run_ip

from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.host_device.plugin import HostDevice, HostDeviceConfig


@pytest.fixture
def plugin(scratch: ScratchCni) -> HostDevice:
    """The plugin, on a host whose interface card0 is wired to wire0."""

    def wire(route: Any) -> None:
        route.link("add", ifname="card0", kind="veth", peer="wire0", address=MAC)
        for name in ("card0", "wire0"):
            route.link("set", index=route.link_lookup(ifname=name)[0], state="up")

    run_ip(scratch.host_netns, wire)
    made = HostDevice(HostDeviceConfig(data_dir=scratch.folder / "networks"), scratch.host)
    scratch.on_host(made.start)
    return made
