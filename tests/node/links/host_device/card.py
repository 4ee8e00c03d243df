"""The card of a host and of a container: configurations for it, and where it is."""

from collections.abc import Callable
from typing import Any

from nodeplug import Netns
from nodeplug.testing.scratch_cni import ScratchCni, run_in
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import Link, Links

Look = Callable[[Netns], Any]
Ping = Callable[[Netns, str], bool]
MAC = "02:00:00:00:00:11"


def run_ip(netns: Netns, work: Callable[[Any], Any]) -> None:
    def change() -> None:
        from pyroute2 import IPRoute  # noqa: PLC0415  only what stands beside the plugin needs it

        with IPRoute() as route:
            work(route)

    run_in(netns, change)


def network(**keys: Any) -> dict[str, Any]:
    named = keys.keys() & {"device", "hwaddr", "kernelpath", "pciBusID", "runtimeConfig"}
    device = {} if named else {"device": "card0"}
    ipam = {"type": "host-local", "ranges": [[{"subnet": "10.88.0.0/24"}]]}
    return {"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-host-device", "ipam": ipam, **device, **keys}


def flat(**keys: Any) -> dict[str, Any]:
    return {key: value for key, value in network(**keys).items() if key != "ipam"}


def link(netns: Netns, name: str) -> Link | None:
    def find() -> Link | None:
        with Netlink() as netlink:
            return Links(netlink).get(name)

    return run_in(netns, find)


def held(scratch: ScratchCni) -> list[str]:
    folder = scratch.folder / "networks" / "net"
    return [path.name for path in folder.glob("*") if path.name[0].isdigit()]


def records(scratch: ScratchCni) -> list[str]:
    return [path.name for path in (scratch.host.run_dir / "devices").glob("*")]


def is_home(scratch: ScratchCni) -> bool:
    """Whether the card is on the host as it was, and nothing is held."""
    card = link(scratch.host_netns, "card0")
    return (card is not None and card.alias == "" and card.mac == MAC) and not held(scratch) and not records(scratch)
