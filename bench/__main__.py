"""`make bench`: one run of everything, in a network and mount namespace of its own.

Prints a table and writes `bench/results/latest.json`. Needs root; the comparison needs Debian's
containernetworking-plugins and is left out, with a word, where they are missing.
"""

import argparse
import asyncio
import itertools
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import cni, daemon
from bench.measure import Summary
from nodeplug.testing import Kubelet, ScratchNode

RESULTS = Path(__file__).parent / "results" / "latest.json"
INSIDE = "NODEPLUG_BENCH_INSIDE"
ENTRYPOINTS = {"ours": "", "native": "_native"}
"""Our engines, and what their names add to a key."""
Figures = dict[str, float]
Tell = Callable[[str], None]


def main() -> int:
    """Parse, go into namespaces of our own, measure, report."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")
    arguments = parser.parse_args()
    if os.geteuid() != 0:
        print("the benchmark makes network namespaces and needs root", file=sys.stderr)
        return 1
    if INSIDE not in os.environ:
        command = ["unshare", "--net", "--mount", "--propagation", "private", "--"]
        command += [sys.executable, "-m", "bench", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    return _inside(quick=arguments.quick)


def _inside(*, quick: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="np-bench-", dir="/tmp"))
    console = Console()
    try:
        with console.status("starting") as status:
            figures = asyncio.run(_measure(folder, quick=quick, tell=status.update))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    about = {"machine": _machine(), "load_average": os.getloadavg()[0], "quick": quick}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(figures | about, indent=1, sort_keys=True) + "\n")
    console.print(_table(figures))
    if "cni_add_p50_ratio" not in figures:
        console.print("no comparison: install containernetworking-plugins for the reference executables")
    if "shim_native_p50_ms" not in figures:
        console.print("no compiled entrypoint: install gcc and libc6-dev")
    return 0


async def _measure(folder: Path, *, quick: bool, tell: Tell) -> Figures:
    root = folder / "n"
    root.mkdir()
    node = ScratchNode(root, daemon.PLUGINS)
    figures: Figures = {}
    async with Kubelet(root / "var" / "lib" / "kubelet") as kubelet:
        tell("daemon: start to registration")
        figures["registered_after_start_s"] = await daemon.registered_after_start(node, kubelet)
        try:
            tell("daemon: Allocate")
            figures |= _flat("allocate", await daemon.allocate(kubelet, 50 if quick else 1000))
            figures |= await asyncio.to_thread(_measure_cni, folder, node, quick=quick, tell=tell)
            tell("daemon: idle")
            seconds = 1 if quick else 10
            figures["daemon_idle_cpu_percent"] = await asyncio.to_thread(daemon.idle_cpu_percent, node.pid, seconds)
            figures["daemon_rss_mib"] = daemon.rss_mib(node.pid)
        finally:
            node.stop()
    return figures


def _measure_cni(folder: Path, node: ScratchNode, *, quick: bool, tell: Tell) -> Figures:
    engines = cni.engines(folder, node)
    tell("shim")
    figures: Figures = {}
    for name, summary in cni.shim([one for one in engines if one.name in ENTRYPOINTS], 20 if quick else 300).items():
        figures |= _flat(f"shim{ENTRYPOINTS[name]}", summary)
    with cni.namespaces(folder, 8 if quick else 100) as paths:
        for name, of in cni.interleaved(engines, paths, tell).items():
            for verb, seconds in (("add", of.add), ("check", of.check), ("del", of.delete)):
                figures |= _flat(f"cni_{verb}_{name}", Summary.of(seconds))
        tell(f"{cni.PARALLEL} at once")
        rates = cni.throughput(engines, paths[: 3 * cni.PARALLEL], 1 if quick else 3)
    for name, (add, delete) in rates.items():
        figures |= {f"cni_add_16_{name}_per_s": add, f"cni_del_16_{name}_per_s": delete}
    return figures | _ratios(figures)


def _flat(name: str, summary: Summary) -> Figures:
    return {f"{name}_p50_ms": summary.p50, f"{name}_p90_ms": summary.p90, f"{name}_p99_ms": summary.p99}


def _ratios(figures: Figures) -> Figures:
    """Each of ours over the reference, within this run; empty without the reference."""
    if "cni_add_reference_p50_ms" not in figures:
        return {}
    ratios: Figures = {}
    for name, infix in ENTRYPOINTS.items():
        if f"cni_add_{name}_p50_ms" not in figures:
            continue
        for verb, rank in itertools.product(("add", "check", "del"), ("p50", "p99")):
            ours, reference = (figures[f"cni_{verb}_{engine}_{rank}_ms"] for engine in (name, "reference"))
            ratios[f"cni_{verb}{infix}_{rank}_ratio"] = ours / reference
        for key in ("cni_add_16", "cni_del_16"):
            ours, reference = (figures[f"{key}_{engine}_per_s"] for engine in (name, "reference"))
            ratios[f"{key}{infix}_throughput_ratio"] = ours / reference
    return ratios


def _machine() -> str:
    kernel = platform.release().partition("-")[0]  # a build's suffix says nothing to a reader
    return f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}"


def _table(figures: Figures) -> Table:
    table = Table("measure", "p50 / p90 / p99 ms, or value", title=_machine())
    series = sorted(key.removesuffix("_p90_ms") for key in figures if key.endswith("_p90_ms"))
    for name in series:
        table.add_row(name, " / ".join(f"{figures[f'{name}_{rank}_ms']:.2f}" for rank in ("p50", "p90", "p99")))
    for key in sorted(figures):
        if not key.endswith("_ms"):
            table.add_row(key, f"{figures[key]:.2f}")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
