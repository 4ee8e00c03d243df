"""Cards by claims: `python -m bench.claimed`.

A daemon with 8 simulated cards of 80 units, beside an API server, a scheduler and a kubelet that are acted out: how
long slices take to be there, what a claim costs, durable record and CDI spec included, and how soon an ill card is
told. A whole run writes `bench/results/claimed.json` and the table of `docs/performance.md`.
"""

import argparse
import datetime as dt
import json
import os
import platform
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from bench import page
from bench.figures import flat
from bench.measure import Summary
from nodeplug.pb import dra_v1_pb2 as pb
from nodeplug.pb import dra_v1_pb2_grpc as pb_grpc
from nodeplug.testing import ScratchNode, folders
from nodeplug.testing.dra import DraKubelet, ResourceApi, Scheduler
from nodeplug.testing.waiting import until

NODE: Final = "node-1"
DRIVER: Final = "gpu.nodeplug.io"
CARDS, UNITS = 8, 80
_PLUGIN: Final = f"""
[plugins.gpu]
serve = "dra"
[plugins.gpu.config]
driver = "simulated"
poll = "50ms"
simulated = [{{ memory = "{UNITS}GiB", count = {CARDS} }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
access = {{ visible_devices = "uuid" }}
"""
_SUPERVISOR: Final = 'node_name = "{}"\nlisten = ""\nkubeconfig = "{}"\npodresources_poll = "1s"'
_TURN: Final = 0.002


def main() -> int:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.claimed", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few claims: shows that it runs; writes no page")
    arguments = parser.parse_args()
    kernel = platform.release().partition("-")[0]
    figures: dict[str, Any] = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
        "quick": arguments.quick,
        **(measure(1, 5, 1) if arguments.quick else measure(7, 300, 7)),
        "load_average": os.getloadavg()[0],
    }
    page.keep("claimed", figures)
    return 0


def measure(starts: int, claims: int, faults: int) -> Mapping[str, float]:
    """Start daemons, have claims prepared, and cards fall ill.

    Args:
        starts: of daemons.
        claims: that are prepared and unprepared, one after another.
        faults: cards that fall ill, each in a life of a daemon.

    Returns:
        Figures by name: milliseconds, and requests.
    """
    published, told = [], []
    for _ in range(max(starts, faults)):
        with _served() as (api, node, _):
            published.append(_until_published(api, node))
            told.append(_fault(api, node))
    with _served() as (api, node, kubelet):
        node.start()
        until(lambda: _units(api) == CARDS * UNITS)
        kubelet.until_registered(DRIVER)
        prepared, unprepared = _claims(api, node, claims)
        before = len(api.asked)
        time.sleep(5)
        quiet = [one for one in api.asked[before:] if not one.startswith("WATCH")]
    return {
        **flat("published", Summary.of(published)),
        **flat("prepare", prepared),
        **flat("unprepare", unprepared),
        **flat("told", Summary.of(told)),
        "quiet_requests": float(len(quiet)),
    }


@contextmanager
def _served() -> Iterator[tuple[ResourceApi, ScratchNode, DraKubelet]]:
    """Give a cluster, and a node whose daemon was not started yet."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    root = folder / "n"
    try:
        with ResourceApi(NODE) as api, DraKubelet(root / "var/lib/kubelet", api, [root / "var/run/cdi"]) as kubelet:
            (folder / "kubeconfig").write_text(api.kubeconfig)
            node = ScratchNode(root, _PLUGIN, supervisor=_SUPERVISOR.format(NODE, folder / "kubeconfig"))
            try:
                yield api, node, kubelet
            finally:
                node.stop()
    finally:
        folders.remove(folder)


def _units(api: ResourceApi) -> int:
    values = [one["capacity"]["memory"]["value"] for it in api.slices() for one in it["spec"].get("devices") or ()]
    return sum(int(value.removesuffix("Gi")) for value in values)


def _until_published(api: ResourceApi, node: ScratchNode) -> float:
    return _seconds(lambda: _units(api) == CARDS * UNITS, node.start)


def _seconds(holds: Callable[[], bool], begin: Callable[[], object]) -> float:
    """Return how long something takes to be so after it was begun."""
    started = time.perf_counter()
    begin()
    while not holds():
        time.sleep(_TURN)
    return time.perf_counter() - started


def _fault(api: ResourceApi, node: ScratchNode) -> float:
    """Have a card fall ill, and return how long its taint takes."""
    path = node.paths.run / "plugins/gpu/simulated-faults.json"
    passing = path.with_suffix(".new")
    passing.write_text('{"cards": {"0": {"xid": 79}}}')
    return _seconds(lambda: '"taints"' in json.dumps(api.slices()), lambda: passing.rename(path))


def _claims(api: ResourceApi, node: ScratchNode, count: int) -> tuple[Summary, Summary]:
    """Prepare and unprepare claims, as kubelet does over its open connection."""
    scheduler = Scheduler(api)
    scheduler.add_class("gpu", f'device.driver == "{DRIVER}"')
    (socket,) = (node.paths.plugins_registry.parent / "plugins" / DRIVER).glob("dra-*.sock")
    wanted = {"name": "gpu", "exactly": {"deviceClassName": "gpu", "capacity": {"requests": {"memory": "4Gi"}}}}
    series: tuple[list[float], list[float]] = ([], [])
    with grpc.insecure_channel(f"unix:{socket}") as channel:
        stub = pb_grpc.DRAPluginStub(channel)
        for number in range(count + 1):
            name = f"c-{number}"
            scheduler.claim(name, wanted)
            (claim,) = scheduler.place(f"p-{number}", [name])
            named = [pb.Claim(namespace="default", uid=claim["metadata"]["uid"], name=name)]
            started = time.perf_counter()
            prepared = stub.NodePrepareResources(pb.NodePrepareResourcesRequest(claims=named))
            series[0].append(time.perf_counter() - started)
            started = time.perf_counter()
            ended = stub.NodeUnprepareResources(pb.NodeUnprepareResourcesRequest(claims=named))
            series[1].append(time.perf_counter() - started)
            if any(one.error for answer in (prepared, ended) for one in answer.claims.values()):
                raise RuntimeError(f"the driver refused {name}: {prepared} {ended}")
            scheduler.free(f"p-{number}")
    return Summary.of(series[0][1:]), Summary.of(series[1][1:])  # the first one waits for kubelet's word on holders


if __name__ == "__main__":
    sys.exit(main())
