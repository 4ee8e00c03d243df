"""One ADD, DEL or GC of bandwidth that is killed before a step: `python -m ... STEP FOLDER HOST POD VERB CONFIG`."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.node.bandwidth.lab import before
from tests.node.killing import die_in_call

from nodeplug import Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.bandwidth.plugin import Bandwidth, BandwidthConfig


def main(step: int, folder: Path, here: Netns, netns: Netns, verb: str, config: dict[str, Any]) -> None:
    here.enter()
    plugin = Bandwidth(BandwidthConfig(), host(folder, plugin="scratch"))
    die_in_call(step, plugin, verb, config, before(netns), here, netns)


if __name__ == "__main__":
    number, folder, *paths = sys.argv[1:5]
    host_netns, container = map(Netns.open, paths)
    main(int(number), Path(folder), host_netns, container, sys.argv[5], json.loads(sys.argv[6]))
