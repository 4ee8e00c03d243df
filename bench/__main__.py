"""`make bench`: one run of everything, in a network and mount namespace of its own.

Prints a table and the gates. The whole run writes `bench/results/latest.json`, and from it the picture and the tables
of `docs/performance.md`; the quick one writes `bench/results/quick.json` alone. Needs root; the comparison needs
the reference plugins (`make consumers`, or Debian's containernetworking-plugins) and iptables, and is left out, with a
word, where they are missing.
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
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from bench import (
    chain,
    cni,
    daemon,
    devices,
    gpu,
    growth,
    installation,
    page,
    processes,
    repair,
    report,
    trace,
    volumes,
)
from bench.attempts import Attempts
from bench.figures import flat, of_cni, traced
from nodeplug.testing import Kubelet, ScratchNode, folders, namespaces

ROOT: Final = Path(__file__).parents[1]
INSIDE: Final = "NODEPLUG_BENCH_INSIDE"


def main() -> int:
    """Parse, go into namespaces of our own, measure, report."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few repetitions: shows that it runs, not how fast")
    told = "measure nothing: write page and picture from the results into a folder that has the page, docs by default"
    parser.add_argument("--page", nargs="?", type=Path, const=page.DOCS, metavar="FOLDER", help=told)
    arguments = parser.parse_args()
    if arguments.page:
        page.write(json.loads((page.RESULTS / "latest.json").read_text()), arguments.page)
        for name in report.TABLES:
            figures = json.loads((page.RESULTS / f"{name}.json").read_text())
            page.write_table(name, report.TABLES[name](figures), arguments.page)
        return 0
    if os.geteuid() != 0:
        print("the benchmark makes network namespaces and needs root", file=sys.stderr)
        return 1
    if INSIDE not in os.environ:
        command = [*namespaces.command(network=True), sys.executable, "-m", "bench", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    return _inside(quick=arguments.quick)


def _inside(*, quick: bool) -> int:
    folder = Path(tempfile.mkdtemp(prefix="np-bench-", dir="/tmp"))
    console = Console()
    try:
        with console.status("starting") as status:
            attempts = Attempts(status.update)
            kind = asyncio.run(_measure(folder, attempts, quick=quick))
    finally:
        folders.unmount_below(folder)
        folders.remove(folder)
    docs = None if quick else page.DOCS
    return conclude(attempts, _about(kind, quick=quick), console, page.RESULTS, docs)


def conclude(attempts: Attempts, about: Mapping[str, Any], console: Console, results: Path, docs: Path | None) -> int:
    """Write and print what was measured, and say what was not.

    Args:
        attempts: the figures, and which measures failed.
        about: what else goes beside them: the machine, the versions.
        console: where tables are printed.
        results: the folder of the results.
        docs: the folder of the page that a whole run writes.

    Returns:
        The exit status: 1 when a measure failed.
    """
    figures: dict[str, Any] = {**attempts.figures, **about}
    if attempts.failed:
        figures["failed"] = attempts.reasons()
    results.mkdir(exist_ok=True)
    path = results / ("quick.json" if about["quick"] else "latest.json")
    path.write_text(json.dumps(figures, indent=1, sort_keys=True) + "\n")
    for table in (report.everything(figures), report.gates(figures)):
        console.print(table)
    if docs is not None:
        page.write(figures, docs)
    if not about["reference_version"]:
        console.print("no comparison: make consumers, or install containernetworking-plugins; and install iptables")
    if about["entrypoints"] != "native":
        console.print("no compiled entrypoint: install gcc and libc6-dev")
    for what, why in attempts.failed.items():
        print(f"NOT MEASURED: {what}: {why}", file=sys.stderr)
    return 1 if attempts.failed else 0


async def _measure(folder: Path, attempts: Attempts, *, quick: bool) -> str:
    root = daemon.with_run_in_memory(folder / "n")
    devices.make_nodes(folder / "dev")
    node = ScratchNode(
        root, daemon.plugins(folder / "dev"), supervisor=daemon.SUPERVISOR, env={"PYTHONPATH": str(ROOT)}
    )
    kind = ""
    async with Kubelet(root / "var" / "lib" / "kubelet") as kubelet:
        try:
            with attempts.measuring("daemon: start to registration") as figures:
                times = 1 if quick else 7
                figures["registered_after_start_s"] = await daemon.registered_after_start(node, kubelet, times)
            with attempts.measuring("daemon: a crash to the list") as figures:
                figures["listed_after_crash_s"] = await daemon.listed_after_crash(node, kubelet, 1 if quick else 7)
            await _measure_devices(kubelet, folder / "dev", attempts, quick=quick)
            with attempts.measuring("CNI"):
                kind = (await asyncio.to_thread(node.status))["entrypoints"]["kind"]
                await asyncio.to_thread(_measure_cni, folder, node, attempts, quick=quick)
            with attempts.measuring("daemon: idle") as figures:
                seconds = 1 if quick else 10
                figures["daemon_idle_cpu_percent"] = await asyncio.to_thread(daemon.idle_cpu_percent, node.pid, seconds)
                figures["daemon_rss_mib"] = daemon.rss_mib(node.pid)
        finally:
            await asyncio.to_thread(node.stop)
    with attempts.measuring("the default installation") as figures:
        figures["default_memory_mib"] = await asyncio.to_thread(installation.memory_mib, folder / "i")
    with attempts.measuring("plugins in processes") as figures:
        figures.update(await processes.measure(folder / "p", {"PYTHONPATH": str(ROOT)}, quick=quick))
    with attempts.measuring("volumes over both fronts") as figures:
        figures.update(await asyncio.to_thread(volumes.measure, folder / "v", quick=quick))
    with attempts.measuring("cards"):
        await gpu.measure_gpu(attempts, quick=quick)
    return str(kind)


async def _measure_devices(kubelet: Kubelet, nodes: Path, attempts: Attempts, *, quick: bool) -> None:
    with attempts.measuring("devices: the first list") as figures:
        figures.update(flat("register_to_first_list", await devices.first_list(kubelet, 3 if quick else 30)))
    with attempts.measuring("devices: Allocate") as figures:
        figures.update(flat("allocate", await devices.allocate(kubelet, 50 if quick else 1000)))
    with attempts.measuring("devices: GetPreferredAllocation") as figures:
        figures.update(flat("preferred_allocation", await devices.preferred(kubelet, 50 if quick else 1000)))
    with attempts.measuring("devices: health") as figures:
        figures.update(flat("health_to_stream", await devices.health(kubelet, nodes, 5 if quick else 100)))


def _measure_cni(folder: Path, node: ScratchNode, attempts: Attempts, *, quick: bool) -> None:
    engines = cni.engines(folder, node)
    serial: Mapping[str, cni.Serial] = {}
    bursts: Mapping[str, cni.Bursts] = {}
    alone: cni.Alone = {}
    with cni.namespaces(folder, 8 if quick else 100) as paths:
        with attempts.measuring("CNI, one at a time"):
            serial = cni.interleaved(engines, paths, node, attempts.tell)
        with attempts.measuring(f"CNI, {cni.PARALLEL} at once"):
            bursts = cni.bursts(engines, paths[: 3 * cni.PARALLEL], 1 if quick else 3, node.pid)
        for engine in engines[:2]:  # the default, without and with ipMasq
            with attempts.measuring(f"tracing of {engine.name}") as figures:
                shares = trace.add(engine, paths[:30], node.pid, folder / f"trace-{engine.name}")
                figures.update(traced(engine.masq, shares))
        with attempts.measuring("the whole chain") as figures:
            figures.update(chain.measure(engines, paths, quick=quick))
        with attempts.measuring("repair of what somebody removes") as figures:
            figures.update(flat("repair", repair.measure(engines[0], paths, quick=quick)))
        with attempts.measuring("what grows with a node") as figures:
            figures.update(growth.measure(engines[0], paths[0], quick=quick))
    with attempts.measuring("the entrypoints alone"):
        ours = [engine for engine in engines if engine.kind != "reference" and not engine.masquerade]
        alone = cni.alone(ours, 20 if quick else 300)
    attempts.figures |= of_cni(engines, serial, bursts, alone)


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
        "reference_version": cni.reference()[1] or _debians("containernetworking-plugins"),
        "reference_iptables_version": _package("iptables"),
    }


def _debians(name: str) -> str:
    found = _package(name)
    return f"{name} {found} of Debian" if found else ""


def _package(name: str) -> str:
    """Return the version of a Debian package; empty where it is not installed."""
    if shutil.which("dpkg-query") is None:
        return ""
    command = ["dpkg-query", "--show", "--showformat=${Version}", name]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())
