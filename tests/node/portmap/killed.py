"""One ADD, DEL or GC of portmap that is killed before a step: `python -m ... STEP FOLDER NETNS VERB CONFIG`."""

import json
import socket
import sys
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from tests.node.killing import die_in_call

from nodeplug import CniInterface, CniIp, CniResult, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.portmap import host_ports
from nodeplug_net.portmap.plugin import Portmap, PortmapConfig

RESULT = CniResult(
    interfaces=(CniInterface("eth0", sandbox="/x"),),
    ips=(CniIp(ip_interface("10.88.0.2/24"), interface=0), CniIp(ip_interface("fd00:88::2/64"), interface=0)),
)


def main(step: int, folder: Path, netns: str, verb: str, config: dict[str, Any]) -> None:
    here = Netns.open(netns)
    here.enter()
    plugin = Portmap(PortmapConfig(), host(folder, plugin="scratch"))
    plugin.start()
    steps = (host_ports, "set_sysctl"), (socket.socket, "bind"), (socket.socket, "close")
    die_in_call(step, plugin, verb, config, RESULT, here, here if verb == "add" else None, *steps)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
