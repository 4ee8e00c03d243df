"""`make bench`: one run of everything, in a network and mount namespace of its own.

Prints a table and the gates. The whole run writes `bench/results/latest.json`, and from it the picture and the tables
of `docs/performance.md`; the quick one writes `bench/results/quick.json` alone. Needs root; the comparison needs
Debian's containernetworking-plugins and iptables, and is left out, with a word, where they are missing.
"""

import argparse
import asyncio
import datetime as dt
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench import cni, daemon, devices, gpu, page, report, trace
from bench.figures import Figures, flat, of_cni, traced
from nodeplug.testing import Kubelet, ScratchNode

RESULTS: Final = Path(__file__).parent / "results"
ROOT: Final = Path(__file__).parents[1]
INSIDE: Final = "NODEPLUG_BENCH_INSIDE"
Tell = Callable[[str], None]


def main() -> int:
    """Parse, go into namespaces of our own, measure, report."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")
    told = "measure nothing: write page and picture from latest.json into a folder that has the page, docs by default"
    parser.add_argument("--page", nargs="?", type=Path, const=page.DOCS, metavar="FOLDER", help=told)
    arguments = parser.parse_args()
    if arguments.page:
        page.write(json.loads((RESULTS / "latest.json").read_text()), arguments.page)
        return 0
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
            measured, kind = asyncio.run(_measure(folder, quick=quick, tell=status.update))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    figures = measured | _about(kind, quick=quick)
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / ("quick.json" if quick else "latest.json")
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    for table in (report.everything(figures), report.gates(figures)):
        console.print(table)
    if not quick:
        page.write(figures, page.DOCS)
    if "cni_add_p50_ratio" not in figures:
        console.print("no comparison: install containernetworking-plugins and iptables for the reference executables")
    if kind != "native":
        console.print("no compiled entrypoint: install gcc and libc6-dev")
    return 0


async def _measure(folder: Path, *, quick: bool, tell: Tell) -> tuple[Figures, str]:
    root = folder / "n"
    root.mkdir()
    devices.make_nodes(folder / "dev")
    node = ScratchNode(
        root, daemon.plugins(folder / "dev"), supervisor=daemon.SUPERVISOR, env={"PYTHONPATH": str(ROOT)}
    )
    figures: Figures = {}
    async with Kubelet(root / "var" / "lib" / "kubelet") as kubelet:
        try:
            tell("daemon: start to registration")
            figures["registered_after_start_s"] = await daemon.registered_after_start(node, kubelet, 1 if quick else 7)
            tell("device plugins")
            figures |= await _measure_devices(kubelet, folder / "dev", quick=quick)
            measured, kind = await asyncio.to_thread(_measure_cni, folder, node, quick=quick, tell=tell)
            tell("daemon: idle")
            seconds = 1 if quick else 10
            figures["daemon_idle_cpu_percent"] = await asyncio.to_thread(daemon.idle_cpu_percent, node.pid, seconds)
            figures["daemon_rss_mib"] = daemon.rss_mib(node.pid)
        finally:
            node.stop()
    tell("cards")
    return figures | measured | await gpu.measure_gpu(quick=quick), kind


async def _measure_devices(kubelet: Kubelet, nodes: Path, *, quick: bool) -> Figures:
    figures = flat("register_to_first_list", await devices.first_list(kubelet, 3 if quick else 30))
    figures |= flat("allocate", await devices.allocate(kubelet, 50 if quick else 1000))
    figures |= flat("preferred_allocation", await devices.preferred(kubelet, 50 if quick else 1000))
    return figures | flat("health_to_stream", await devices.health(kubelet, nodes, 5 if quick else 100))


def _measure_cni(folder: Path, node: ScratchNode, *, quick: bool, tell: Tell) -> tuple[Figures, str]:
    engines = cni.engines(folder, node)
    with cni.namespaces(folder, 8 if quick else 100) as paths:
        series = cni.interleaved(engines, paths, node, tell)
        tell(f"CNI, {cni.PARALLEL} at once")
        cni.bursts(engines, paths[: 3 * cni.PARALLEL], 1 if quick else 3, series, node.pid)
        tell("tracing")
        shares: Figures = {}
        for engine in engines[:2]:  # the default, without and with ipMasq
            trace_file = folder / f"trace-{engine.name}"
            shares |= traced(engine.masq, trace.add(engine, paths[:30], node.pid, trace_file))
    tell("the entrypoints alone")
    ours = [engine for engine in engines if engine.kind != "reference" and not engine.masquerade]
    alone = cni.alone(ours, 20 if quick else 300)
    return of_cni(engines, series, alone) | shares, engines[0].kind


def _about(kind: str, *, quick: bool) -> dict[str, Any]:
    kernel = platform.release().partition("-")[0]  # a build's suffix says nothing to a reader
    return {
        "cpus": os.cpu_count(),
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "entrypoints": kind,
        "kernel": kernel,
        "load_average": os.getloadavg()[0],
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
        "nodeplug_version": version("nodeplug"),
        "python_version": platform.python_version(),
        "quick": quick,
        "reference_version": _package("containernetworking-plugins"),
        "reference_iptables_version": _package("iptables"),
    }


def _package(name: str) -> str:
    """Return the version of a Debian package; empty where it is not installed."""
    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${Version}", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
