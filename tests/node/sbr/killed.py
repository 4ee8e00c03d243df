"""One ADD of sbr that is killed before a step: `python -m ... STEP FOLDER NETNS`."""

import sys
from pathlib import Path

from tests.node.killing import die_in_call
from tests.node.sbr.lab import FOUR, SIX, conf, result

from nodeplug import Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.sbr.plugin import Sbr, SbrConfig


def main(step: int, folder: Path, netns: Netns) -> None:
    plugin = Sbr(SbrConfig(), host(folder, plugin="scratch"))
    die_in_call(step, plugin, "add", conf(), result(FOUR, SIX), netns, netns, ifname="net1")


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Netns.open(sys.argv[3]))
