"""What many nodes that publish cost one API server: `python -m bench.publishers --nodes 1000`.

As root, with what `make consumers` builds and etcd. Each node is its Node object and the code that writes it, with its
own budget; the API server is real, and all of them ask it from this one process. Four phases: all begin at once, as
after an outage; nothing changes; each changes once within half a minute; and everything changes every second on all
of them, for a minute, which the budgets bound. Prints a table; writes nothing.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from tests.real.consumers.control_plane import ControlPlane
from tests.real.consumers.private_node import PrivateNode

from bench.claims import built
from nodeplug.cluster.desired import Desired
from nodeplug.cluster.node_object import NodeObject
from nodeplug.cluster.publisher import BUDGETS
from nodeplug.cluster.requests import Budget, Count, Requests
from nodeplug.contract.errors import AlreadyExists, PluginError
from nodeplug.kubeapi.client import Bounds, Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.kubeapi.resources import NODES, Object, Resource
from nodeplug.testing import folders
from nodeplug_gpu.free_memory import FreeCard, FreeMemory, PodName, encode

_TICKS: Final = os.sysconf("SC_CLK_TCK")
SPREAD: Final = 30.0
"""Seconds in which each node changes once."""


def main() -> int:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.publishers", description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--storm", type=int, default=60, help="seconds in which everything changes all the time")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp")).resolve()
    try:
        programs = built("kubernetes")
        for name in ("n", "p"):
            (folder / name).mkdir()
        with (
            PrivateNode(folder / "n") as node,
            ControlPlane(node, folder / "p", programs) as control,
            node.netns.entered(),
        ):
            rows = asyncio.run(_measure(control, arguments.nodes, arguments.storm))
    except PluginError as error:
        print(f"no publishers: {error.message}", file=sys.stderr)
        return 1
    finally:
        folders.remove(folder)
    _show(arguments.nodes, rows)
    return 0


class Timed(Client):
    """A client that notes how long each request took.

    Attributes:
        took: seconds of each.
    """

    def __init__(self, credentials: Credentials) -> None:
        super().__init__(credentials, Bounds(at_once=32, request=120.0))
        self.took: list[float] = []

    async def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Get, and note it."""
        return await self._timed(super().get(resource, name, namespace))

    async def apply(
        self, resource: Resource, applied: Mapping[str, Any], manager: str, *more: str, **how: Any
    ) -> Object:
        """Apply, and note it."""
        return await self._timed(super().apply(resource, applied, manager, *more, **how))

    async def _timed(self, work: Awaitable[Object]) -> Object:
        begun = time.monotonic()
        found = await work
        self.took.append(time.monotonic() - begun)
        return found


@dataclass
class Phase:
    """One phase, and what it cost."""

    name: str
    seconds: float
    took: list[float]
    cpu: float

    @property
    def row(self) -> tuple[str, ...]:
        """Return it for the table."""
        count = len(self.took)
        middle = statistics.median(self.took) if count else 0.0
        late = sorted(self.took)[int(count * 0.99)] if count else 0.0
        figures = (count / self.seconds, middle * 1000, late * 1000, 100 * self.cpu / self.seconds)
        return (self.name, f"{self.seconds:.0f}", str(count), *(f"{one:.1f}" for one in figures))


@dataclass
class Publishers:
    """Every node, and the client that they share here."""

    client: Timed
    cpu: Callable[[], float]
    nodes: list[tuple[NodeObject, Requests]] = field(default_factory=list)

    async def make(self, count: int) -> None:
        """Create the Node objects, as kubelets would."""

        async def one(name: str) -> None:
            labels = {"kubernetes.io/hostname": name}
            with suppress(AlreadyExists):
                await self.client.create(NODES, {"metadata": {"name": name, "labels": labels}})

        names = [f"node-{number}" for number in range(count)]
        await asyncio.gather(*map(one, names))
        self.nodes = [
            (NodeObject(name, 300.0), Requests(self.client, Budget(*BUDGETS["node"]), Count())) for name in names
        ]

    async def phase(self, name: str, work: Callable[[int, NodeObject, Requests], Awaitable[None]]) -> Phase:
        """Have every node do something, and measure it."""
        self.client.took = []
        begun, cpu = time.monotonic(), self.cpu()
        await asyncio.gather(*(work(number, *one) for number, one in enumerate(self.nodes)))
        return Phase(name, max(time.monotonic() - begun, 0.001), self.client.took, self.cpu() - cpu)


async def _measure(control: ControlPlane, count: int, storm: int) -> list[Phase]:
    stat = Path(f"/proc/{control.api_pid}/stat")

    def cpu() -> float:
        fields = stat.read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    async with Timed(Credentials(find(control.folder / "kubeconfig"))) as client:
        publishers = Publishers(client, cpu)
        await publishers.make(count)

        async def bring(_: int, node: NodeObject, requests: Requests) -> None:
            await node.bring(desired(0), requests)

        async def once(number: int, node: NodeObject, requests: Requests) -> None:
            await asyncio.sleep(SPREAD * number / count)
            await node.bring(desired(1), requests)

        async def all_the_time(_: int, node: NodeObject, requests: Requests) -> None:
            end = time.monotonic() + storm
            seq = 2
            while time.monotonic() < end:
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(end - time.monotonic(), 0)):
                        await node.bring(desired(seq), requests)
                        await asyncio.sleep(1.0)
                seq += 1

        return [
            await publishers.phase("all begin at once", bring),
            await publishers.phase("nothing changes", bring),
            await publishers.phase("each changes once", once),
            await publishers.phase("all change all the time", all_the_time),
        ]


def desired(seq: int) -> Desired:
    """Return what a node with eight cards and thirty pods says."""
    cards = tuple(FreeCard(f"{one:08x}", f"GPU-{one:036x}", one, 79, 33) for one in range(8))
    pods = tuple(PodName("team", f"deployment-5d8f9c7b6-{one:05}") for one in range(30))
    free = FreeMemory("aliyun.com/gpu-mem", seq, 1 << 30, "binpack", cards, pods)
    labels = {f"nvidia.com/gpu.label-{one}": "value" for one in range(24)}
    return Desired(labels, {"nodeplug.io/gpu-mem": encode(free)})


def _show(count: int, rows: list[Phase]) -> None:
    heads = ("phase", "seconds", "requests", "per second", "p50 ms", "p99 ms", "CPU % of one")
    table = Table(*heads, title=f"{count} nodes that publish, one API server, {os.cpu_count()} CPUs for all")
    for one in rows:
        table.add_row(*one.row)
    Console().print(table)


if __name__ == "__main__":
    sys.exit(main())
