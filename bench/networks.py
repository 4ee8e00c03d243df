"""A pod with three networks, and a daemon that knows many: `python -m bench.networks`.

ADD and DEL of `nodeplug-networks`, which attaches the default network and two NetworkAttachmentDefinitions, beside
three executions of the reference's bridge, in turns. The networks are alike: a bridge as gateway, addresses of
host-local. And the memory of a daemon with the same plugins without a section `[networks]`, with it, and with ten
thousand definitions. A whole run writes `bench/results/networks.json` and the table of `docs/performance.md`; it needs
root, and what `make consumers` builds or Debian's plugins.
"""

import argparse
import datetime as dt
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.node.acted_api import ActedApi

from bench import cni, page
from bench.daemon import with_run_in_memory
from bench.figures import flat
from bench.installation import family
from bench.measure import Execution, Summary, execute
from nodeplug.observe.processes import usage
from nodeplug.testing import ScratchNode, folders, namespaces
from nodeplug.testing.waiting import until

ROOT: Final = Path(__file__).parents[1]
INSIDE: Final = "NODEPLUG_BENCH_INSIDE"
MANY: Final = 10_000
_KEY: Final = "k8s.v1.cni.cncf.io/networks"
_IFNAMES: Final = ("eth0", "net1", "net2")
_SUPERVISOR: Final = 'listen = ""\ninstall = true\nnode_name = "node-1"'
_PLUGINS: Final = "[plugins.bridge]\n[plugins.host-local]\n[plugins.networks]\n"
_VERBS: Final = ("ADD", "DEL")


def main() -> int:
    """Parse, go into namespaces of our own, measure, tell."""
    parser = argparse.ArgumentParser(prog="bench.networks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few pods: shows that it runs; writes no page")
    arguments = parser.parse_args()
    if not (cni.reference()[0] / "bridge").exists():
        print("no comparison: make consumers, or install containernetworking-plugins")
        return 0
    if INSIDE not in os.environ:
        command = [*namespaces.command(network=True), sys.executable, "-m", "bench.networks", *sys.argv[1:]]
        return subprocess.run(command, env={**os.environ, INSIDE: "1"}, check=False).returncode
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)  # the API server is there
    figures = measure(quick=arguments.quick) | about(quick=arguments.quick)
    page.keep("networks", figures)
    return 0


def about(*, quick: bool) -> dict[str, Any]:
    """Return where and when it was."""
    kernel = platform.release().partition("-")[0]
    return {
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
        "load_average": os.getloadavg()[0],
        "machine": f"{os.cpu_count()} CPUs, Linux {kernel}, Python {platform.python_version()}",
        "quick": quick,
        "reference_version": cni.reference()[1],
    }


def measure(*, quick: bool) -> dict[str, Any]:
    """Return all figures by name."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        figures: dict[str, Any] = {"without_mib": _memory(folder / "without", "")}
        with _daemon(folder / "few", 0) as (node, api), cni.namespaces(folder, 3 if quick else 60) as paths:
            figures["with_mib"] = _mib(node)
            for name in ("blue", "green"):
                api.definition(name, _network(name, 0, "nodeplug-bridge", folder))
            until(lambda: _known(node) == 2)
            figures |= _pods(_Ours(node.paths.cni_bin, folder), _Theirs(cni.reference()[0], folder), paths)
        started = time.monotonic()
        with _daemon(folder / "many", 200 if quick else MANY) as (node, _):
            until(lambda: _known(node) == (200 if quick else MANY))
            figures["many_known_s"] = time.monotonic() - started
            figures["many_mib"] = _mib(node)
    finally:
        folders.unmount_below(folder)
        folders.remove(folder)
    return figures


# --- pods


def _network(name: str, number: int, kind: str, folder: Path) -> dict[str, Any]:
    subnet = {"pods": 0, "blue": 1, "green": 2}[name] + 3 * number
    ranges = [[{"subnet": f"10.{200 + subnet}.0.0/16"}]]
    ipam = {"type": "host-local", "dataDir": str(folder / kind), "ranges": ranges}
    bridge = f"{name}{number}"
    return {"cniVersion": "1.0.0", "name": bridge, "type": kind, "bridge": bridge, "isGateway": True, "ipam": ipam}


@dataclass(frozen=True, slots=True)
class _Ours:
    programs: Path
    folder: Path

    def call(self, verb: str, container: str, netns: Path) -> float:
        """Execute `nodeplug-networks`; return the seconds."""
        annotations = {"io.kubernetes.cri.pod-annotations": {_KEY: "blue,green"}}
        default = _network("pods", 0, "nodeplug-bridge", self.folder)
        config = {"cniVersion": "1.0.0", "name": "all", "delegates": [default], "runtimeConfig": annotations}
        plugin = "nodeplug-networks"
        return _call(self.programs, plugin, verb, container, "eth0", netns, {**config, "type": plugin}).seconds


@dataclass(frozen=True, slots=True)
class _Theirs:
    programs: Path
    folder: Path

    def call(self, verb: str, container: str, netns: Path) -> float:
        """Execute the reference's bridge three times; return the seconds of all."""
        pairs = list(zip(("pods", "blue", "green"), _IFNAMES, strict=True))
        return sum(
            _call(
                self.programs, "bridge", verb, container, ifname, netns, _network(name, 1, "bridge", self.folder)
            ).seconds
            for name, ifname in (pairs if verb == "ADD" else reversed(pairs))
        )


def _call(
    programs: Path, plugin: str, verb: str, container: str, ifname: str, netns: Path, config: Mapping[str, Any]
) -> Execution:
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container,
        "CNI_NETNS": str(netns),
        "CNI_IFNAME": ifname,
        "CNI_PATH": str(programs),
        "PATH": cni.PATH,
    }
    return execute(str(programs / plugin), env, json.dumps(config).encode()).checked(f"{verb} of {plugin}")


def _pods(ours: _Ours, theirs: _Theirs, paths: list[Path]) -> dict[str, float]:
    """Attach and detach a pod in each namespace by both, in turns; the first life warms up."""
    series: dict[str, list[float]] = {f"{who}{verb}": [] for who in ("", "reference_") for verb in _VERBS}
    for turn, path in enumerate((paths[0], *paths)):
        both = (("", ours), ("reference_", theirs))
        for who, caller in both if turn % 2 else reversed(both):
            for verb in _VERBS:
                seconds = caller.call(verb, f"c{turn}", path)
                if turn:
                    series[f"{who}{verb}"].append(seconds)
            time.sleep(cni.IDLE_AFTER_DEL)
    figures: dict[str, float] = {}
    for name, taken in series.items():
        figures |= flat(f"pod_{name.lower()}".replace("pod_reference_", "reference_pod_"), Summary.of(taken))
    for verb in ("add", "del"):
        figures[f"pod_{verb}_ratio"] = figures[f"pod_{verb}_p50_ms"] / figures[f"reference_pod_{verb}_p50_ms"]
    return figures


# --- daemons


@contextmanager
def _daemon(root: Path, count: int) -> Iterator[tuple[ScratchNode, ActedApi]]:
    """Start a daemon that follows a cluster with so many definitions."""
    with_run_in_memory(root)
    with ActedApi() as api:
        api.node()
        for number in range(count):
            api.definition(f"network-{number}", {**_network("blue", 0, "nodeplug-bridge", root), "name": f"n{number}"})
        (root / "kubeconfig").write_text(api.kubeconfig)
        toml = f'{_PLUGINS}[networks]\nkubeconfig = "{root}/kubeconfig"\npaths = ["{root.parent}"]\n'
        with ScratchNode(root, toml, supervisor=_SUPERVISOR) as node:
            _settled(node)
            yield node, api


def _memory(root: Path, more: str) -> float:
    with_run_in_memory(root)
    with ScratchNode(root, _PLUGINS + more, supervisor=_SUPERVISOR) as node:
        _settled(node)
        return _mib(node)


def _settled(node: ScratchNode) -> None:
    until(lambda: {row["state"] for row in node.status()["plugins"]} == {"running"})
    until((node.paths.cni_bin / "nodeplug-networks").exists)


def _mib(node: ScratchNode) -> float:
    return sum(one.memory for one in usage(family(node.pid)).values()) / (1 << 20)


def _known(node: ScratchNode) -> int:
    """Return how many definitions the daemon keeps for its next start."""
    path = node.paths.state / "networks" / "definitions.json"
    return len(json.loads(path.read_text())["definitions"]) if path.exists() else 0


if __name__ == "__main__":
    sys.exit(main())
