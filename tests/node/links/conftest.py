"""What tests of interfaces in containers share: changes beside the plugin, looks at an interface, ends of processes."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.link_kinds import need_kind

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links


class Eyes:
    """Changes and looks that do not go through a plugin."""

    def __init__(self, scratch: ScratchCni) -> None:
        self.scratch = scratch

    def change(self, netns: Netns, work: Callable[[Any], Any]) -> None:
        """Call a function with pyroute2's IPRoute of a namespace."""

        def run() -> None:
            from pyroute2 import IPRoute  # noqa: PLC0415  only what stands beside the plugin needs it

            with IPRoute() as route:
                work(route)

        run_in(netns, run)

    def find(self, netns: Netns, name: str = "eth0") -> Link | None:
        """Find an interface."""

        def look() -> Link | None:
            with Netlink() as netlink:
                return Links(netlink).get(name)

        return run_in(netns, look)

    def link(self, netns: Netns, name: str = "eth0") -> Link:
        """Find an interface that is there."""
        found = self.find(netns, name)
        assert found is not None
        return found

    def held(self) -> list[str]:
        """List the addresses that are reserved."""
        folder = self.scratch.folder / "networks" / "net"
        return [path.name for path in folder.glob("*") if path.name[0].isdigit()]


@pytest.fixture
def eyes(scratch: ScratchCni) -> Eyes:
    return Eyes(scratch)


@pytest.fixture(autouse=True)
def _kinds(request: pytest.FixtureRequest) -> None:
    for mark in request.node.iter_markers("link_kind"):
        need_kind(mark.args[0])
