"""A reload while cards are held: `python -m bench.reloading`.

A daemon with 16 simulated cards of 80 units, each of which a container holds a part of, beside a kubelet that is acted
out: how long kubelet waits for an answer while the section of the cards changes, and its plugin is exchanged behind
open streams. A whole run writes `bench/results/reloading.json` and the table of `docs/performance.md`.
"""

import argparse
import datetime as dt
import os
import platform
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Self

from bench import page
from bench.figures import flat
from bench.measure import Summary
from nodeplug.testing import ScratchNode, folders
from nodeplug.testing.kubelet import BlockingKubelet
from nodeplug.testing.waiting import until

RESOURCE: Final = "nvidia.com/gpu-memory"
CARDS, UNITS, PART = 16, 80, 4
_RELOADED: Final = "configuration reloaded"
_AFTER: Final = 0.5
"""Seconds after a reload that still count as part of it: the former plugin is stopped."""
_TURN: Final = 0.001
_PLUGIN: Final = f"""
[plugins.gpu.config]
driver = "simulated"
poll = "{{poll}}ms"
simulated = [{{{{ memory = "{UNITS}GiB", count = {CARDS} }}}}]
[[plugins.gpu.config.resources]]
sharing = "memory"
resource = "{RESOURCE}"
access = {{{{ visible_devices = "uuid" }}}}
policy = "spread"
"""


def main() -> int:
    """Parse, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.reloading", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few reloads: shows that it runs; writes no page")
    arguments = parser.parse_args()
    kernel = platform.release().partition("-")[0]
    figures: dict[str, Any] = {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
        "quick": arguments.quick,
        **measure(2 if arguments.quick else 30),
        "load_average": os.getloadavg()[0],
    }
    page.keep("reloading", figures)
    return 0


def measure(reloads: int) -> Mapping[str, float]:
    """Change the section so many times, and ask without a pause meanwhile.

    Returns:
        Figures by name, in milliseconds: of the slowest requests of each reload, of reloads, and of requests on a node
        at rest.
    """
    with _served() as (node, kubelet):
        held = {
            kubelet.admit(f"p-{number}", {RESOURCE: PART})[RESOURCE].envs["NVIDIA_VISIBLE_DEVICES"]
            for number in range(CARDS)
        }
        if len(held) != CARDS:
            raise RuntimeError(f"of {CARDS} cards these are held: {held}")
        with _Asking(kubelet) as asking:
            time.sleep(1)
            rest = asking.taken()
            slowest, lasted = zip(*(_reload(node, asking, number) for number in range(reloads)), strict=True)
    return {
        **flat("rest", Summary.of(rest)),
        **flat("slowest", Summary.of(slowest)),
        "slowest_of_all_ms": max(slowest) * 1e3,
        **flat("reload", Summary.of(lasted)),
    }


@contextmanager
def _served() -> Iterator[tuple[ScratchNode, BlockingKubelet]]:
    """Give a node whose cards kubelet has."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with (
            ScratchNode(folder / "n", _PLUGIN.format(poll=50), supervisor='listen = ""\n') as node,
            BlockingKubelet(folder / "n/var/lib/kubelet") as kubelet,
        ):
            kubelet.until_allocatable(RESOURCE, CARDS * UNITS)
            yield node, kubelet
    finally:
        folders.remove(folder)


class _Asking:
    """For the length of a block, a thread that has kubelet admit a pod with one unit, again and again."""

    def __init__(self, kubelet: BlockingKubelet) -> None:
        self._kubelet = kubelet
        self._seconds: list[float] = []
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._broken: list[Exception] = []
        self._begun: float | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        if self._broken:
            raise self._broken[0]

    def taken(self) -> list[float]:
        """Return the seconds of each admission that has ended since the last time, and of the one under way."""
        taken, self._seconds = self._seconds, []
        begun = self._begun
        return [*taken, *([time.perf_counter() - begun] if begun is not None else [])]

    def _run(self) -> None:
        while not self._ends.is_set():
            self._begun = started = time.perf_counter()
            try:
                self._kubelet.admit("asks", {RESOURCE: 1})
            except Exception as error:  # raised where the thread is waited for
                self._broken.append(error)
                return
            self._seconds.append(time.perf_counter() - started)
            self._begun = None
            self._kubelet.remove_pod("asks")
            time.sleep(_TURN)


def _reload(node: ScratchNode, asking: _Asking, number: int) -> tuple[float, float]:
    """Change the section; return the seconds of the slowest admission until it is in effect, and those until then."""
    before = node.log.count(_RELOADED)
    node.configure(_PLUGIN.format(poll=50 + number % 2 + 1))
    asking.taken()
    started = time.perf_counter()
    node.reload()
    until(lambda: node.log.count(_RELOADED) > before)
    lasted = time.perf_counter() - started
    time.sleep(_AFTER)
    return max(asking.taken()), lasted


if __name__ == "__main__":
    sys.exit(main())
