"""One ADD or DEL of tuning that is killed before a step: `python -m ... STEP FOLDER NETNS VERB CONFIG`."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.node.killing import die_before

from nodeplug import CniAdd, CniDel, CniResult, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.tuning.plugin import Tuning, TuningConfig


def main(step: int, folder: Path, netns: str, verb: str, config: dict[str, Any]) -> None:
    here = Netns.open(netns)
    plugin = Tuning(TuningConfig(allowlist=folder / "none", data_dir=folder / "tuning"), host(folder, plugin="scratch"))
    plugin.start()
    common: dict[str, Any] = {"claim": "x", "network": "net", "version": "1.1.0", "config": config, "host_netns": here}
    common |= {"container_id": "c1", "ifname": "eth0", "prev_result": CniResult(), "netns": here}

    def call() -> None:
        if verb == "add":
            plugin.cni_add(CniAdd(**common))
        else:
            plugin.cni_del(CniDel(**common))

    die_before(step, call)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
