"""One ADD, DEL or GC of tuning that is killed before a step: `python -m ... STEP FOLDER NETNS VERB CONFIG`."""

import json
import sys
from pathlib import Path
from typing import Any

from tests.node.killing import die_in_call

from nodeplug import CniResult, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.tuning.plugin import Tuning, TuningConfig


def main(step: int, folder: Path, netns: str, verb: str, config: dict[str, Any]) -> None:
    here = Netns.open(netns)
    plugin = Tuning(TuningConfig(allowlist=folder / "none", data_dir=folder / "tuning"), host(folder, plugin="scratch"))
    plugin.start()
    die_in_call(step, plugin, verb, config, CniResult(), here, here)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4], json.loads(sys.argv[5]))
