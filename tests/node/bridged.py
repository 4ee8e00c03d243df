"""Links and addresses of containers on a bridge."""

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links


def link(netns: Netns, name: str) -> Link | None:
    def find() -> Link | None:
        with Netlink() as netlink:
            return Links(netlink).get(name)

    return run_in(netns, find)


def present(netns: Netns, name: str) -> Link:
    found = link(netns, name)
    assert found is not None
    return found


def files(scratch: ScratchCni) -> set[str]:
    folder = scratch.folder / "networks" / "net"
    return {path.name for path in folder.iterdir() if path.name != "lock" and not path.name.startswith("last_")}
