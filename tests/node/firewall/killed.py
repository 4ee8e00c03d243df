"""One ADD, DEL or GC of the firewall that is killed before a step: `python -m ... STEP FOLDER NETNS VERB CONFIG`."""

import json
import sys
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

from tests.node.killing import die_in_call

from nodeplug import CniInterface, CniIp, CniResult, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.firewall.plugin import Firewall, FirewallConfig


def result(four: str = "10.88.0.2/24", six: str = "fd00:88::2/64") -> CniResult:
    return CniResult(
        interfaces=(CniInterface("br0"), CniInterface("eth0", sandbox="/x")),
        ips=(CniIp(ip_interface(four), interface=1), CniIp(ip_interface(six), interface=1)),
    )


def main(step: int, folder: Path, netns: str, verb: str, config: dict[str, Any]) -> None:
    here = Netns.open(netns)
    here.enter()
    plugin = Firewall(FirewallConfig(), host(folder, plugin="scratch"))
    plugin.start()
    die_in_call(step, plugin, verb, config, result(), here, here if verb == "add" else None)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
