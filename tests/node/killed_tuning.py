"""One ADD or DEL of tuning in a process that kills itself before its n-th step: a message to the kernel, a rename, ...

`python killed_tuning.py FOLDER NETNS VERB STEP CONFIG`; it ends with status 0 if there is no such step.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nodeplug import CniAdd, CniDel, CniResult, Netns
from nodeplug.testing.plugin_host import host
from nodeplug_net.netlink.connection import Netlink
from nodeplug_net.tuning.plugin import Tuning, TuningConfig

left = -1


def counted(function: Callable[..., Any]) -> Callable[..., Any]:
    def step(*arguments: Any, **keys: Any) -> Any:
        global left  # noqa: PLW0603 - a process of one call
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **keys)

    return step


def main(folder: Path, netns: str, verb: str, step: int, config: dict[str, Any]) -> None:
    global left  # noqa: PLW0603
    here = Netns.open(netns)
    plugin = Tuning(TuningConfig(allowlist=folder / "none", data_dir=folder / "tuning"), host(folder, plugin="scratch"))
    plugin.start()
    common: dict[str, Any] = {"claim": "x", "network": "net", "version": "1.1.0", "config": config, "host_netns": here}
    common |= {"container_id": "c1", "ifname": "eth0", "prev_result": CniResult(), "netns": here}
    Netlink.exchange = counted(Netlink.exchange)  # type: ignore[method-assign]
    Path.mkdir = counted(Path.mkdir)  # type: ignore[method-assign]
    Path.rename = counted(Path.rename)  # type: ignore[method-assign]
    Path.unlink = counted(Path.unlink)  # type: ignore[method-assign]
    left = step
    if verb == "add":
        plugin.cni_add(CniAdd(**common))
    else:
        plugin.cni_del(CniDel(**common))
    left = -1
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), json.loads(sys.argv[5]))
