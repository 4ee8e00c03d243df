"""One ADD or DEL of bandwidth that is killed before a step: `python -m ... STEP FOLDER HOST POD VERB CONFIG`."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.node.bandwidth.lab import before
from tests.node.killing import die_before

from nodeplug import CniAdd, CniDel, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.bandwidth.plugin import Bandwidth, BandwidthConfig


def main(step: int, folder: Path, here: Netns, netns: Netns, verb: str, config: dict[str, Any]) -> None:
    here.enter()
    plugin = Bandwidth(BandwidthConfig(), host(folder, plugin="scratch"))
    common: dict[str, Any] = {"claim": "x", "network": "net", "version": "1.1.0", "config": config, "host_netns": here}
    common |= {"container_id": "c1", "ifname": "eth0", "prev_result": before(netns), "netns": netns}

    def call() -> None:
        if verb == "add":
            plugin.cni_add(CniAdd(**common))
        else:
            plugin.cni_del(CniDel(**common))

    die_before(step, call)


if __name__ == "__main__":
    number, folder, *paths = sys.argv[1:5]
    host_netns, container = map(Netns.open, paths)
    main(int(number), Path(folder), host_netns, container, sys.argv[5], json.loads(sys.argv[6]))
