"""A scheduler extender as kube-scheduler meets it: `python -m bench.extenders`.

Filter and prioritize over 500 nodes, asked over one connection that stays open, of a plugin that answers at once: so
nearly all of the time is the daemon's. In a process of its own and in a thread; with names of nodes, and with whole
nodes of 30 KB. Then of the extender that knows the cards, in a cluster of 5,000 nodes (`bench/following.py`). A whole
run writes `bench/results/extenders.json` and the table of `docs/performance.md`.
"""

import argparse
import datetime as dt
import http.client
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from bench import following, page
from bench.figures import flat
from bench.measure import Summary
from nodeplug.testing import ScratchNode, folders
from nodeplug.testing.isolation import ISOLATIONS, Isolation
from nodeplug.testing.pods import url_prefix
from nodeplug.testing.scheduler import node as v1_node
from nodeplug.testing.scheduler import pod as v1_pod

ROOT: Final = Path(__file__).parents[1]
NODES: Final = 500
_NODE_BYTES: Final = 30 << 10
_PLUGIN: Final = """
[extender]
listen = "127.0.0.1:0"
max_body = "32Mi"
[plugins.placing]
uses = "bench.placing:Placing"
"""
_TICKS: Final = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.extenders", description=__doc__)
    parser.add_argument("--calls", type=int, default=1000, help="how many calls of each verb")
    parser.add_argument("--quick", action="store_true", help="few calls: shows that it runs; writes no page")
    arguments = parser.parse_args()
    calls = 20 if arguments.quick else arguments.calls
    kernel = platform.release().partition("-")[0]
    figures: dict[str, Any] = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
        "quick": arguments.quick,
        "real_time": os.sched_getscheduler(0) == os.SCHED_FIFO,
    }
    for isolation in ISOLATIONS:
        figures |= {f"{isolation}_{name}": value for name, value in measure(isolation, calls).items()}
    nodes, few = (500, 50) if arguments.quick else (following.NODES, following.ASKED)
    figures |= {f"cards_{name}": value for name, value in following.measure(nodes, few, calls // 4 or 5).items()}
    figures["load_average"] = os.getloadavg()[0]
    page.keep("extenders", figures)
    return 0


def measure(isolation: Isolation, calls: int) -> dict[str, float]:
    """Start a daemon and ask it; return figures by name."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with ScratchNode(folder, _PLUGIN, env={"PYTHONPATH": str(ROOT)}, isolation=isolation) as daemon:
            return _asked(daemon, calls)
    finally:
        folders.remove(folder)


def _asked(daemon: ScratchNode, calls: int) -> dict[str, float]:
    place = urlsplit(url_prefix(daemon, "placing"))
    connection = http.client.HTTPConnection(place.netloc, timeout=60)
    names = [f"node-{number:03}.example.com" for number in range(NODES)]
    pod = v1_pod("web", labels={"app": "web"})
    by_name = _body(pod, names, None)
    filler = {"annotations": {"x": "y" * _NODE_BYTES}}
    items = [one | {"metadata": one["metadata"] | filler} for one in map(v1_node, names)]
    whole = _body(pod, None, items)

    def once(verb: str, body: bytes) -> float:
        started = time.perf_counter()
        connection.request("POST", f"{place.path}/{verb}", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        told = answer.read()
        seconds = time.perf_counter() - started
        if answer.status != http.HTTPStatus.OK or b'"Error":"' in told.replace(b'"Error":""', b""):
            raise RuntimeError(f"{verb} failed with status {answer.status}: {told[-500:]!r}")
        return seconds

    def many(verb: str, body: bytes, count: int) -> Summary:
        once(verb, body)  # the first one warms up
        return Summary.of([once(verb, body) for _ in range(count)])

    figures = flat("filter", many("filter", by_name, calls)) | flat("prioritize", many("prioritize", by_name, calls))
    spent, started = _processor(daemon.pid), time.perf_counter()
    for _ in range(calls):
        once("filter", by_name)
        once("prioritize", by_name)
    figures["pod_ms"] = (time.perf_counter() - started) / calls * 1e3
    figures["daemon_cpu_ms"] = (_processor(daemon.pid) - spent) / (2 * calls) * 1e3
    figures |= flat("filter_whole", many("filter", whole, max(calls // 50, 3)))
    connection.close()
    return figures


def _body(pod: object, names: object, items: object) -> bytes:
    nodes = None if items is None else {"metadata": {}, "items": items}
    return json.dumps({"Pod": pod, "Nodes": nodes, "NodeNames": names}, separators=(",", ":")).encode()


def _processor(pid: int) -> float:
    """Return the seconds of the processor that the daemon itself has used; a plugin's process has its own."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:13])) / _TICKS


if __name__ == "__main__":
    sys.exit(main())
