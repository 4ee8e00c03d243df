"""One call of a plugin that is killed before a step: `python -m tests.node.killed STEP FOLDER HOST NETNS PLUGIN CALL`.

CALL is JSON: the verb, the configuration, and what else the request has. The plugins that need more than this have a
`killed` of their own.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.node import killing

from nodeplug import CniAdd, CniDel, CniGc, Netns, ValidAttachment
from nodeplug.cni import results
from nodeplug.testing.plugin_host import host
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.bridge.plugin import Bridge
from nodeplug_net.dhcp.plugin import Dhcp
from nodeplug_net.dhcp.wire import Wire
from nodeplug_net.dummy.plugin import Dummy
from nodeplug_net.ipam.host_local import HostLocal
from nodeplug_net.ipvlan.plugin import Ipvlan
from nodeplug_net.macvlan.plugin import Macvlan
from nodeplug_net.ptp.plugin import Ptp
from nodeplug_net.sbr.plugin import Sbr
from nodeplug_net.tap.plugin import Tap
from nodeplug_net.vlan.plugin import Vlan
from nodeplug_net.vrf.plugin import Vrf

PLUGINS: Mapping[str, Any] = {
    "bridge": Bridge,
    "dhcp": Dhcp,
    "dummy": Dummy,
    "host-local": HostLocal,
    "ipvlan": Ipvlan,
    "macvlan": Macvlan,
    "ptp": Ptp,
    "sbr": Sbr,
    "tap": Tap,
    "vlan": Vlan,
    "vrf": Vrf,
}
ID = "c1-of-a-killed-daemon"
"""The container, by a name that is nowhere by chance."""
VERSION = "1.1.0"


def make(kind: str, scratch_folder: Path, own_host: Any) -> Any:
    """Construct a plugin as a daemon does."""
    cls = PLUGINS[kind]
    keys = {"data_dir": scratch_folder / "networks"} if "data_dir" in cls.Config.model_fields else {}
    return cls(cls.Config(**keys), own_host)


def every_step(
    scratch: ScratchCni,
    netns: Callable[[], Netns],
    kind: str,
    verb: str,
    *,
    least: int,
    prepare: Callable[[], object] = lambda: None,
    **call: Any,
) -> Iterator[int]:
    """Kill a plugin's call before each of its steps.

    Args:
        scratch: the host.
        netns: returns the container's namespace of the next call.
        kind: the plugin.
        verb: add, del or gc.
        least: how many steps it has at least.
        prepare: is called before each.
        call: `config`, `ifname`, `previous` (a result as JSON) and `valid` (pairs of container and interface).
    """
    own = f"/proc/{os.getpid()}/fd"

    def words() -> list[str]:
        text = json.dumps({"verb": verb, "ifname": "eth0", "previous": None, "valid": [], **call})
        return [str(scratch.folder), f"{own}/{scratch.host_netns.fd}", f"{own}/{netns().fd}", kind, text]

    return killing.every_step("tests.node.killed", words, least=least, prepare=prepare)


def main(step: int, folder: Path, here: Netns, netns: Netns, kind: str, call: dict[str, Any]) -> None:
    here.enter()
    plugin = make(kind, folder, host(folder, plugin="scratch"))
    if hasattr(plugin, "start"):
        plugin.start()
    config = call["config"]
    common: dict[str, Any] = {"claim": "x", "network": config["name"], "version": VERSION, "config": config}
    common |= {"host_netns": here}
    previous = None if call["previous"] is None else results.decode(call["previous"], VERSION)
    attachment = {"container_id": ID, "ifname": call["ifname"], "netns": netns, "prev_result": previous}
    valid = tuple(ValidAttachment(container_id=container, ifname=ifname) for container, ifname in call["valid"])
    verbs: dict[str, Callable[[], object]] = {
        "add": lambda: plugin.cni_add(CniAdd(**attachment, **common)),
        "del": lambda: plugin.cni_del(CniDel(**attachment, **common)),
        "gc": lambda: plugin.cni_gc(CniGc(valid=valid, **common)),
    }
    killing.die_before(step, verbs[call["verb"]], (os, "write"), (os, "unlink"), (Wire, "send"))


if __name__ == "__main__":
    number, place, outside, inside, plugin_kind, text = sys.argv[1:]
    main(int(number), Path(place), Netns.open(outside), Netns.open(inside), plugin_kind, json.loads(text))
