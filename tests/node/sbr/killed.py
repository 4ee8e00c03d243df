"""One ADD of sbr that is killed before a step: `python -m ... STEP FOLDER NETNS`."""

import sys
from pathlib import Path
from typing import Any

from tests.node.killing import die_before
from tests.node.sbr.lab import FOUR, SIX, conf, result

from nodeplug import CniAdd, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.sbr.plugin import Sbr, SbrConfig


def main(step: int, folder: Path, netns: Netns) -> None:
    plugin = Sbr(SbrConfig(), host(folder, plugin="scratch"))
    common: dict[str, Any] = {"claim": "x", "network": "net", "version": "1.1.0", "config": conf(), "host_netns": netns}
    common |= {"container_id": "c1", "ifname": "net1", "prev_result": result(FOUR, SIX), "netns": netns}
    die_before(step, lambda: plugin.cni_add(CniAdd(**common)))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), Netns.open(sys.argv[3]))
