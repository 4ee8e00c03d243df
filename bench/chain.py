"""The whole chain, all ours against all theirs, in turns.

bridge, host-local, ipMasq, portmap, bandwidth, tuning and firewall; both versions of IP, and a host port for each
container. A call of the chain is what a runtime does: each executable in order, with the result of the one before (DEL
in the other order).
Owns: these configurations, calls and series.
Refuses: to choose implementations (`bench.cni` does), and gates.
"""

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.cni import IDLE_AFTER_BURST, IDLE_AFTER_DEL, PARALLEL, PATH, VERBS, Engine
from bench.measure import Execution, Summary, execute

KINDS: Final = ("bridge", "portmap", "bandwidth", "tuning", "firewall")
RATES: Final = {"ingressRate": 10**9, "ingressBurst": 10**7, "egressRate": 10**9, "egressBurst": 10**7}
FIRST_PORT: Final = 20000
Figures = dict[str, float]
Seconds = Mapping[str, list[float]]


@dataclass(frozen=True, slots=True)
class Chain:
    """One implementation of the chain.

    Attributes:
        kind: "native" or "script" for ours, "reference".
        folder: of its executables.
        number: a number that no other has.
        data: where addresses are reserved.
    """

    kind: str
    folder: Path
    number: int
    data: Path

    @classmethod
    def of(cls, engine: Engine, number: int) -> "Chain":
        """Return the chain of an engine; a script serves under every name."""
        if engine.kind == "script":
            for kind in KINDS[1:]:
                shutil.copy(engine.folder / "nodeplug-bridge", engine.folder / f"nodeplug-{kind}")
        return cls(engine.kind, engine.folder, number, engine.data.with_name(f"chain-{engine.kind}"))

    @property
    def prefix(self) -> str:
        """What the names of its executables begin with."""
        return "" if self.kind == "reference" else "nodeplug-"

    def config(self, kind: str, port: int) -> dict[str, Any]:
        """Return the object of one plugin as its executable gets it."""
        name = f"chain{self.number}"
        keys: dict[str, Any] = {"cniVersion": "1.0.0", "name": name, "type": f"{self.prefix}{kind}"}
        if kind == "bridge":
            ranges = [[{"subnet": f"10.{self.number}.0.0/16"}], [{"subnet": f"fd00:{self.number}::/64"}]]
            ipam = {"type": "host-local", "dataDir": str(self.data), "ranges": ranges}
            more: dict[str, Any] = {"bridge": name, "isDefaultGateway": True, "ipMasq": True, "ipam": ipam}
        elif kind == "portmap":
            mapping = {"hostPort": port, "containerPort": 80, "protocol": "tcp"}
            more = {"runtimeConfig": {"portMappings": [mapping]}}
        elif kind == "bandwidth":
            more = dict(RATES)
        elif kind == "tuning":
            more = {"mtu": 1400, "sysctl": {"net.core.somaxconn": "512"}, "dataDir": str(self.data / "tuning")}
        else:
            more = {}
        return keys | more

    def call(self, verb: str, container: str, netns: Path, port: int, previous: Any = None) -> tuple[float, Any]:
        """Execute a verb of all plugins for one container; return the seconds of all executions, and the result."""
        seconds = 0.0
        for kind in reversed(KINDS) if verb == "DEL" else KINDS:
            config = self.config(kind, port) | ({"prevResult": previous} if previous else {})
            done = self.execute(kind, verb, container, netns, config)
            seconds += done.seconds
            if verb == "ADD":
                previous = json.loads(done.stdout)
        return seconds, previous

    def execute(
        self, kind: str, verb: str, container: str, netns: Path, config: Mapping[str, Any], ifname: str = "eth0"
    ) -> Execution:
        """Execute one plugin."""
        env = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": container,
            "CNI_NETNS": str(netns),
            "CNI_IFNAME": ifname,
            "CNI_PATH": str(self.folder),
            "PATH": PATH,
        }
        program = str(self.folder / f"{self.prefix}{kind}")
        return execute(program, env, json.dumps(config).encode()).checked(f"{verb} of {self.kind} {kind}")


def chains(engines: Sequence[Engine]) -> list[Chain]:
    """Return the chains that can be compared: those of the engines, each once."""
    plain = [engine for engine in engines if not engine.masquerade]
    ours = [one for one in plain if (one.folder / "firewall").exists() or one.kind != "reference"]
    return [Chain.of(engine, 150 + number) for number, engine in enumerate(ours)]


def measure(engines: Sequence[Engine], paths: Sequence[Path], *, quick: bool) -> Figures:
    """Measure chains one at a time and at once; the first engine is the default, unprefixed."""
    found = chains(engines)
    serial = _interleaved(found, paths[: 3 if quick else 100])
    bursts = _bursts(found, paths[:PARALLEL], 1 if quick else 3)
    figures: Figures = {}
    for chain in found:
        prefix = "" if chain is found[0] else f"{chain.kind}_"
        for verb in VERBS:
            name = f"{prefix}chain_{verb.lower()}"
            summary = Summary.of(serial[chain.kind][verb])
            figures |= {f"{name}_p50_ms": summary.p50, f"{name}_p90_ms": summary.p90, f"{name}_p99_ms": summary.p99}
            figures[f"{name}_{PARALLEL}_per_s"] = 1 / Summary.of(bursts[chain.kind][verb]).p50 * 1e3
    return figures | _ratios(figures, [one.kind for one in found[1:]])


def _ratios(figures: Figures, others: Sequence[str]) -> Figures:
    if "reference" not in others:
        return {}
    ratios: Figures = {}
    for prefix in ("", *(f"{kind}_" for kind in others if kind != "reference")):
        for name in (f"chain_{verb.lower()}" for verb in VERBS):
            ours, theirs = f"{prefix}{name}", f"reference_{name}"
            for rank in ("p50", "p99"):
                ratios[f"{ours}_{rank}_ratio"] = figures[f"{ours}_{rank}_ms"] / figures[f"{theirs}_{rank}_ms"]
            rate = f"{PARALLEL}_per_s"
            ratios[f"{ours}_{PARALLEL}_throughput_ratio"] = figures[f"{ours}_{rate}"] / figures[f"{theirs}_{rate}"]
    return ratios


def _interleaved(found: Sequence[Chain], paths: Sequence[Path]) -> dict[str, Seconds]:
    series: dict[str, Seconds] = {chain.kind: {verb: [] for verb in VERBS} for chain in found}
    for turn, path in enumerate((paths[0], *paths)):  # the first life warms up: bridges, chains, page cache
        for place in range(len(found)):
            chain = found[(turn + place) % len(found)]
            previous = None
            for verb in VERBS:
                seconds, previous = chain.call(verb, f"s{turn}", path, _port(chain, turn), previous)
                if turn:
                    series[chain.kind][verb].append(seconds)
            time.sleep(IDLE_AFTER_DEL)
    return series


def _bursts(found: Sequence[Chain], paths: Sequence[Path], rounds: int) -> dict[str, Seconds]:
    """Have PARALLEL callers; the seconds of each round divided by its calls."""
    series: dict[str, Seconds] = {chain.kind: {verb: [] for verb in VERBS} for chain in found}
    with ThreadPoolExecutor(PARALLEL) as pool:
        for turn in range(rounds):
            for chain in found:
                results: list[Any] = [None] * len(paths)
                for verb in VERBS:
                    started = time.perf_counter()
                    jobs = [
                        pool.submit(chain.call, verb, f"b{turn}-{place}", path, _port(chain, place), results[place])
                        for place, path in enumerate(paths)
                    ]
                    done = [job.result() for job in jobs]
                    series[chain.kind][verb].append((time.perf_counter() - started) / len(paths))
                    results = [result for _, result in done]
                    time.sleep(IDLE_AFTER_BURST)
    return series


def _port(chain: Chain, place: int) -> int:
    """A port that no other chain and no other container has."""
    return FIRST_PORT + 1000 * (chain.number % 10) + place
