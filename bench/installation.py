"""What the default installation needs: every plugin of configs/plugins.d, right after the daemon's start.

Owns: the memory of the daemon and of all that it has started, by proportional shares (Pss, proc(5)).
Refuses: load: what a daemon has after a run is measured in `daemon`.
"""

from pathlib import Path
from typing import Final

from nodeplug.observe.processes import usage
from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

CONFIGS: Final = Path(__file__).parents[1] / "configs" / "plugins.d"


def plugins(root: Path) -> str:
    """Return the tables as they are shipped, with state below `root`."""
    tables = "\n".join(one.read_text() for one in sorted(CONFIGS.glob("*.toml")))
    return tables.replace('"/var/lib/', f'"{root}/var/lib/')


def memory_mib(root: Path) -> float:
    """Start the daemon, and return what it has with its processes when each plugin has started, in MiB."""
    root.mkdir(parents=True)
    with ScratchNode(root, plugins(root), supervisor='listen = ""\n') as node:
        until(lambda: {row["state"] for row in node.status()["plugins"]} == {"running"})
        return sum(one.memory for one in usage(family(node.pid)).values()) / (1 << 20)


def family(pid: int) -> list[int]:
    """Return a process and all that it has started, directly or not."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [pid, *(one for thread in threads for child in thread.read_text().split() for one in family(int(child)))]
