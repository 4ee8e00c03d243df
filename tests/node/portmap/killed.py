"""One ADD or DEL of portmap in a process that kills itself before its n-th step: a message to the kernel, a rename, ...

`python killed.py FOLDER NETNS VERB STEP CONFIG`; it ends with status 0 if there is no such step.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from nodeplug import CniAdd, CniDel, CniInterface, CniIp, CniResult, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.netlink.links import set_sysctl
from nodeplug_net.portmap import host_ports
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig

RESULT = CniResult(
    interfaces=(CniInterface("eth0", sandbox="/x"),),
    ips=(CniIp(ip_interface("10.88.0.2/24"), interface=0), CniIp(ip_interface("fd00:88::2/64"), interface=0)),
)
left = -1


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*arguments: Any, **keys: Any) -> Any:
        global left  # noqa: PLW0603 - a process of one call
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keys)

    return step


class CountedSocket(socket.socket):
    bind = counted(socket.socket.bind)
    close = counted(socket.socket.close)


def main(folder: Path, netns: str, verb: str, step: int, config: dict[str, Any]) -> None:
    global left  # noqa: PLW0603
    here = Netns.open(netns)
    here.enter()
    plugin = Portmap(PortmapConfig(), host(folder, plugin="scratch"))
    plugin.start()
    common: dict[str, Any] = {"claim": "x", "network": "net", "version": "1.1.0", "config": config, "host_netns": here}
    common |= {"container_id": "c1", "ifname": "eth0", "prev_result": RESULT}
    Netlink.exchange = counted(Netlink.exchange)  # type: ignore[method-assign]
    vars(host_ports)["set_sysctl"] = counted(set_sysctl)
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]
    os.fsync = counted(os.fsync)
    socket.socket = CountedSocket  # type: ignore[misc]
    left = step
    if verb == "add":
        plugin.cni_add(CniAdd(netns=here, **common))
    else:
        plugin.cni_del(CniDel(**common))
    left = -1
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
