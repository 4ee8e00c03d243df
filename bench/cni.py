"""CNI in one interleaved run: our bridge + host-local against the reference's executables, and the shim alone.

Ours is measured with the entrypoint that an installation chooses on this machine, and with the other kind where it can
be made; both lead to the same daemon. Each of the three comes twice, without and with ipMasq.
Owns: the engines, namespaces, configurations and the order of calls.
Refuses: to run outside a network and mount namespace of its own (`bench.__main__` makes one).
"""

import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.daemon import cpu_seconds
from bench.measure import Execution, Prepared, Summary, execute
from nodeplug.install.scripts import Scripts
from nodeplug.testing import Sandbox, ScratchNode

DEBIAN: Final = Path("/usr/lib/cni")
CONSUMERS: Final = Path(__file__).parents[1] / "tests" / "real" / "consumers" / "cni" / "go.mod"
BUILDER: Final = Path(__file__).parents[1] / ".ci" / "build-consumers"
PATH: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
VERBS: Final = ("ADD", "CHECK", "DEL")
PARALLEL: Final = 16
Alone = Mapping[str, tuple[Summary, Summary]]
"""VERSION and STATUS, by kind of entrypoint."""
IDLE_AFTER_DEL: Final = 0.05
"""Seconds between lives: back to back, our background barriers would slow the reference and flatter us."""
IDLE_AFTER_BURST: Final = 0.3


@dataclass(frozen=True, slots=True)
class Engine:
    """One implementation: where its executables are and what its network looks like.

    Attributes:
        kind: "native" or "script" for ours, "reference".
        masquerade: whether its network has ipMasq.
    """

    kind: str
    masquerade: bool
    folder: Path
    bridge_type: str
    number: int
    data: Path

    @property
    def name(self) -> str:
        """A name that no other engine of the run has; it fits into the name of a bridge."""
        return f"{self.kind[:6]}{'-masq' if self.masquerade else ''}"

    @property
    def masq(self) -> str:
        """What ipMasq adds to the names of figures."""
        return "_masq" if self.masquerade else ""

    def config(self) -> dict[str, Any]:
        """Return the plugin object of its network."""
        ipam = {"type": "host-local", "dataDir": str(self.data), "ranges": [[{"subnet": f"10.{self.number}.0.0/16"}]]}
        return {
            "cniVersion": "1.0.0",
            "name": f"bench-{self.name}",
            "type": self.bridge_type,
            "bridge": f"br-{self.name}",
            "isDefaultGateway": True,
            "ipMasq": self.masquerade,
            "ipam": ipam,
        }

    def call(self, verb: str, container: str, netns: Path, previous: Any = None) -> Execution:
        """Execute one verb for one container."""
        return self.prepared(verb, container, netns, previous).run().ended().checked(f"{verb} of {self.name}")

    def prepared(self, verb: str, container: str, netns: Path, previous: Any = None) -> Prepared:
        """Prepare the execution of one verb for one container."""
        config = self.config() | ({"prevResult": previous} if previous else {})
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(netns),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(self.folder),
            "PATH": PATH,
        }
        return Prepared.of(str(self.folder / self.bridge_type), env, json.dumps(config).encode())


def reference() -> tuple[Path, str]:
    """Find the reference plugins: those that `make consumers` built, else Debian's; with what to call them."""
    done = subprocess.run([str(BUILDER), "--cached", "cni"], capture_output=True, text=True, check=False)
    found = re.search(r"containernetworking/plugins v(\S+)", CONSUMERS.read_text())
    if done.returncode == 0 and found is not None:
        return Path(done.stdout.strip()), f"containernetworking/plugins {found[1]}, built here"
    return DEBIAN, ""


def engines(folder: Path, node: ScratchNode) -> list[Engine]:
    """Return what this machine can compare; the first is what `nodeplug install` chose."""
    chosen = node.status()["entrypoints"]["kind"]
    kinds = {chosen: (node.paths.cni_bin, "nodeplug-bridge")}
    if chosen == "native":
        scripts = folder / "script-bin"
        scripts.mkdir()
        script = scripts / "nodeplug-bridge"
        script.write_bytes(Scripts.render(socket=node.paths.exec_socket, spool=node.paths.spool).cni)
        script.chmod(0o755)
        kinds["script"] = (scripts, "nodeplug-bridge")
    theirs, _ = reference()
    if (theirs / "bridge").exists() and shutil.which("iptables", path=PATH):
        kinds["reference"] = (theirs, "bridge")
    return [
        Engine(kind, masquerade, where, executable, 90 + 2 * number + masquerade, folder / f"{kind}-{masquerade:d}")
        for number, (kind, (where, executable)) in enumerate(kinds.items())
        for masquerade in (False, True)
    ]


@dataclass(slots=True)
class Serial:
    """What was measured of one engine, one call at a time.

    Attributes:
        calls: seconds of each call, by verb.
        plugin: seconds of them that the daemon spent in the plugin, by verb; empty for the reference.
    """

    calls: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})
    plugin: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})


@dataclass(slots=True)
class Bursts:
    """What was measured of one engine, PARALLEL calls at once.

    Attributes:
        calls: seconds of each call, by verb.
        wall: seconds of all bursts together.
        cpu: seconds of user and of system time that the daemon spent meanwhile.
        callers: seconds of both that the executions took.
    """

    calls: dict[str, list[float]] = field(default_factory=lambda: {verb: [] for verb in VERBS})
    wall: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VERBS, 0.0))
    cpu: dict[str, tuple[float, float]] = field(default_factory=lambda: dict.fromkeys(VERBS, (0.0, 0.0)))
    callers: dict[str, float] = field(default_factory=lambda: dict.fromkeys(VERBS, 0.0))


@contextmanager
def namespaces(folder: Path, count: int) -> Iterator[list[Path]]:
    """Make `count` namespaces, and take them down again."""
    with ExitStack() as stack:
        yield [stack.enter_context(Sandbox(folder / f"ns{number}")).path for number in range(count)]


def _rotated(engines: list[Engine], turn: int) -> list[Engine]:
    return engines[turn % len(engines) :] + engines[: turn % len(engines)]


def interleaved(
    engines: list[Engine], paths: list[Path], node: ScratchNode, report: Callable[[str], None]
) -> Mapping[str, Serial]:
    """ADD, CHECK and DEL in every namespace, one at a time, the engines taking turns in rotating order."""
    series = {engine.name: Serial() for engine in engines}
    for engine in engines:  # one life to warm up: bridges, sysctls, page cache
        _one_life(engine, Serial(), "warm", paths[0], node)
    for number, path in enumerate(paths):
        for engine in _rotated(engines, number):
            _one_life(engine, series[engine.name], f"c{number}", path, node)
        if number % 10 == 9:
            report(f"CNI, one at a time: {number + 1} of {len(paths)}")
    return series


def _one_life(engine: Engine, series: Serial, container: str, netns: Path, node: ScratchNode) -> None:
    added = engine.call("ADD", container, netns)
    previous = json.loads(added.stdout)
    checked = engine.call("CHECK", container, netns, previous)
    deleted = engine.call("DEL", container, netns, previous)
    for verb, execution in zip(VERBS, (added, checked, deleted), strict=True):
        series.calls[verb].append(execution.seconds)
    if engine.kind != "reference":
        for call in node.status()["recent"][: len(VERBS)]:
            series.plugin[call["verb"]].append(call["seconds"])
    time.sleep(IDLE_AFTER_DEL)


def bursts(engines: list[Engine], paths: list[Path], rounds: int, daemon: int) -> Mapping[str, Bursts]:
    """ADD, CHECK and DEL in every namespace with PARALLEL callers; rounds of the engines take turns."""
    series = {engine.name: Bursts() for engine in engines}
    with ThreadPoolExecutor(PARALLEL) as pool:
        for turn in range(rounds):
            for engine in _rotated(engines, turn):
                previous: list[Any] = [None] * len(paths)
                for verb in VERBS:
                    calls = [
                        engine.prepared(verb, f"p{turn}-{number}", path, previous[number])
                        for number, path in enumerate(paths)
                    ]
                    before, started = cpu_seconds(daemon), time.perf_counter()
                    ran = list(pool.map(Prepared.run, calls))
                    wall, after = time.perf_counter() - started, cpu_seconds(daemon)
                    done = [call.ended().checked(f"{verb} of {engine.name}") for call in ran]
                    _note(series[engine.name], verb, done, wall, (after[0] - before[0], after[1] - before[1]))
                    if verb == "ADD":
                        previous = [json.loads(execution.stdout) for execution in done]
                    time.sleep(IDLE_AFTER_BURST)
    return series


def _note(series: Bursts, verb: str, done: list[Execution], wall: float, cpu: tuple[float, float]) -> None:
    series.calls[verb] += [execution.seconds for execution in done]
    series.wall[verb] += wall
    series.callers[verb] += sum(execution.cpu for execution in done)
    user, system = series.cpu[verb]
    series.cpu[verb] = (user + cpu[0], system + cpu[1])


def alone(engines: list[Engine], count: int) -> Alone:
    """Time VERSION and STATUS in turns: the entrypoint's own start, and the road through it to the daemon and back."""
    seconds: dict[str, tuple[list[float], list[float]]] = {engine.kind: ([], []) for engine in engines}
    for _ in range(count):
        for engine in engines:
            config = json.dumps(engine.config() | {"cniVersion": "1.1.0"}).encode()
            for verb, series in zip(("VERSION", "STATUS"), seconds[engine.kind], strict=True):
                env = {"CNI_COMMAND": verb, "CNI_PATH": str(engine.folder), "PATH": os.defpath}
                done = execute(str(engine.folder / engine.bridge_type), env, config)
                series.append(done.checked(verb).seconds)
    return {kind: (Summary.of(version), Summary.of(status)) for kind, (version, status) in seconds.items()}
