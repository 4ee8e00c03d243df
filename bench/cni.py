"""CNI in one interleaved run: our bridge + host-local against Debian's reference executables, and the shim alone.

Ours is measured twice, with the script and with the compiled entrypoint; both lead to the same daemon.
Owns: the engines, namespaces, configurations and the order of calls.
Refuses: to run outside a network and mount namespace of its own (`bench.__main__` makes one).
"""

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.measure import Execution, Summary, execute
from nodeplug.errors import NotFound
from nodeplug.install.native import compile_one
from nodeplug.testing import Sandbox, ScratchNode

REFERENCE = Path("/usr/lib/cni")
IDLE_AFTER_DEL = 0.05
"""Seconds between DELs: back to back, our background barriers would slow the reference and flatter us."""
PARALLEL = 16


@dataclass(frozen=True, slots=True)
class Engine:
    """One implementation: where its executables are and what its network looks like."""

    name: str
    folder: Path
    bridge_type: str
    ipam_type: str
    subnet: str
    data: Path
    masquerade: bool = False

    def config(self) -> dict[str, Any]:
        """Return the plugin object of its network."""
        return {
            "cniVersion": "1.0.0",
            "name": f"bench-{self.name}",
            "type": self.bridge_type,
            "bridge": f"br-{self.name}"[:15],
            "isDefaultGateway": True,
            "ipMasq": self.masquerade,
            "ipam": {"type": self.ipam_type, "dataDir": str(self.data), "ranges": [[{"subnet": self.subnet}]]},
        }

    def call(self, verb: str, container: str, netns: Path, previous: Any = None) -> Execution:
        """Execute one verb for one container."""
        config = self.config() | ({"prevResult": previous} if previous else {})
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(netns),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.folder),
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        }
        what = f"{verb} of {self.name}"
        return execute(str(self.folder / self.bridge_type), env, json.dumps(config).encode()).checked(what)


def engines(folder: Path, node: ScratchNode) -> list[Engine]:
    """Install ours and return what this machine can compare: ours, native, reference.

    Raises:
        RuntimeError: the installation failed.
    """
    installed = node.run("install")
    if installed.returncode:
        raise RuntimeError(installed.stderr)
    found = [Engine("ours", node.paths.cni_bin, "nodeplug-bridge", "host-local", "10.91.0.0/16", folder / "ours")]
    try:
        program = compile_one(flex=False, socket=node.paths.exec_socket, spool=node.paths.spool)
    except NotFound:  # no compiler
        pass
    else:
        bin_folder = folder / "native-bin"
        bin_folder.mkdir()
        (bin_folder / "nodeplug-bridge").write_bytes(program)
        (bin_folder / "nodeplug-bridge").chmod(0o755)
        found.append(Engine("native", bin_folder, "nodeplug-bridge", "host-local", "10.93.0.0/16", folder / "native"))
    if (REFERENCE / "bridge").exists():
        found.append(Engine("reference", REFERENCE, "bridge", "host-local", "10.92.0.0/16", folder / "reference"))
    return found


@dataclass(slots=True)
class Series:
    """Seconds of each verb, of one engine."""

    add: list[float] = field(default_factory=list)
    check: list[float] = field(default_factory=list)
    delete: list[float] = field(default_factory=list)


@contextmanager
def namespaces(folder: Path, count: int) -> Iterator[list[Path]]:
    """Make `count` namespaces, and take them down again."""
    with ExitStack() as stack:
        yield [stack.enter_context(Sandbox(folder / f"ns{number}")).path for number in range(count)]


def interleaved(engines: list[Engine], paths: list[Path], report: Callable[[str], None]) -> Mapping[str, Series]:
    """ADD, CHECK and DEL in every namespace, the engines taking turns in rotating order."""
    series = {engine.name: Series() for engine in engines}
    for engine in engines:  # one call to warm up: bridges, sysctls, page cache
        engine.call("ADD", f"warm-{engine.name}", paths[0])
        engine.call("DEL", f"warm-{engine.name}", paths[0])
    for number, path in enumerate(paths):
        turn = number % len(engines)
        for engine in engines[turn:] + engines[:turn]:
            _one_life(engine, series[engine.name], f"c{number}", path)
        if number % 10 == 9:
            report(f"serial: {number + 1} of {len(paths)}")
    return series


def _one_life(engine: Engine, series: Series, container: str, netns: Path) -> None:
    added = engine.call("ADD", container, netns)
    series.add.append(added.seconds)
    previous = json.loads(added.stdout)
    series.check.append(engine.call("CHECK", container, netns, previous).seconds)
    series.delete.append(engine.call("DEL", container, netns, previous).seconds)
    time.sleep(IDLE_AFTER_DEL)


def throughput(engines: list[Engine], paths: list[Path], rounds: int) -> Mapping[str, tuple[float, float]]:
    """ADD and DEL operations per second with PARALLEL callers, rounds of the engines taking turns."""
    spent: dict[str, list[float]] = {engine.name: [0.0, 0.0] for engine in engines}
    with ThreadPoolExecutor(PARALLEL) as pool:
        for turn in range(rounds):
            shift = turn % len(engines)
            for engine in engines[shift:] + engines[:shift]:
                for index, verb in enumerate(("ADD", "DEL")):
                    started = time.perf_counter()
                    jobs = [
                        pool.submit(engine.call, verb, f"p{turn}-{number}", path) for number, path in enumerate(paths)
                    ]
                    for job in jobs:
                        job.result()
                    spent[engine.name][index] += time.perf_counter() - started
                    time.sleep(0.5)
    calls = len(paths) * rounds
    return {name: (calls / add, calls / delete) for name, (add, delete) in spent.items()}


def shim(engines: list[Engine], count: int) -> Mapping[str, Summary]:
    """Time STATUS through shim and daemon, in turns: the road alone, with next to no work at its end."""
    seconds: dict[str, list[float]] = {engine.name: [] for engine in engines}
    for _ in range(count):
        for engine in engines:
            config = json.dumps(engine.config() | {"cniVersion": "1.1.0"}).encode()
            env = {"CNI_COMMAND": "STATUS", "CNI_PATH": str(engine.folder), "PATH": os.defpath}
            done = execute(str(engine.folder / engine.bridge_type), env, config)
            seconds[engine.name].append(done.checked("STATUS").seconds)
    return {name: Summary.of(series) for name, series in seconds.items()}
