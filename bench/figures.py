"""From series to flat keys, and what is asked of them.

Owns: the names of all figures, the ratios, the gates, and where the time of an ADD goes.
Refuses: to measure, and to draw.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.cni import PARALLEL, VERBS, Alone, Bursts, Engine, Serial
from bench.measure import Summary

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Gate:
    """A figure that has a limit."""

    key: str
    at_most: bool
    limit: float
    what: str

    def met(self, figures: Mapping[str, object]) -> bool | None:
        """Whether it is met; None when it was not measured."""
        value = figures.get(self.key)
        if not isinstance(value, int | float):
            return None
        return value <= self.limit if self.at_most else value >= self.limit


GATES: Final = (
    Gate("cni_add_p50_ratio", at_most=True, limit=0.30, what="ADD, time"),
    Gate("cni_check_p50_ratio", at_most=True, limit=0.20, what="CHECK, time"),
    Gate("cni_del_p50_ratio", at_most=True, limit=0.12, what="DEL, time"),
    Gate("cni_add_masq_p50_ratio", at_most=True, limit=0.45, what="ADD with ipMasq, time"),
    Gate("cni_add_16_throughput_ratio", at_most=False, limit=3.5, what="ADD, 16 at once, calls per second"),
    Gate("chain_add_p50_ratio", at_most=True, limit=0.15, what="ADD of the whole chain, time"),
    Gate("chain_del_p50_ratio", at_most=True, limit=0.06, what="DEL of the whole chain, time"),
    Gate("script_cni_add_p50_ratio", at_most=True, limit=0.80, what="script: ADD, time"),
    Gate("script_cni_check_p50_ratio", at_most=True, limit=0.90, what="script: CHECK, time"),
    Gate("script_cni_del_p50_ratio", at_most=True, limit=0.40, what="script: DEL, time"),
    Gate("script_cni_add_cpu_ratio", at_most=True, limit=1.0, what="script: ADD, CPU with the daemon's"),
    Gate("script_cni_check_cpu_ratio", at_most=True, limit=1.0, what="script: CHECK, CPU with the daemon's"),
    Gate("script_cni_del_cpu_ratio", at_most=True, limit=1.0, what="script: DEL, CPU with the daemon's"),
)
"""Where the script is what an installation chooses, its own rows are not measured: it is measured as the default."""


def flat(name: str, summary: Summary) -> Figures:
    """Return the percentiles of one series as `<name>_p50_ms` and so on."""
    return {f"{name}_p50_ms": summary.p50, f"{name}_p90_ms": summary.p90, f"{name}_p99_ms": summary.p99}


def traced(masq: str, shares: Mapping[str, float]) -> Figures:
    """Name what a trace of ADD told; nothing without one."""
    if not shares:
        return {}
    milliseconds = {f"cni_add{masq}_in_{part}_ms": shares[part] * 1e3 for part in ("netlink", "files")}
    return milliseconds | {f"cni_add{masq}_netlink_requests": shares["requests"]}


def of_cni(engines: list[Engine], serial: Mapping[str, Serial], bursts: Mapping[str, Bursts], alone: Alone) -> Figures:
    """Name everything that was measured of CNI, which may lack a part; the first engine is the default, unprefixed."""
    default = engines[0].kind
    prefixes = {engine.kind: "" if engine.kind == default else f"{engine.kind}_" for engine in engines}
    figures: Figures = {}
    for engine in engines:
        prefix = prefixes[engine.kind]
        if engine.name in serial:
            figures |= _one_at_a_time(prefix, engine.masq, serial[engine.name])
        if engine.name in bursts:
            figures |= _at_once(prefix, engine, bursts[engine.name])
    for kind, (version, status) in alone.items():
        figures |= flat(f"{prefixes[kind]}shim", status) | flat(f"{prefixes[kind]}entrypoint_alone", version)
    if "reference" in prefixes:
        for kind in prefixes.keys() - {"reference"}:
            figures |= _ratios(figures, prefixes[kind])
    return figures | _shares(figures)


def _one_at_a_time(prefix: str, masq: str, series: Serial) -> Figures:
    figures: Figures = {}
    for verb in VERBS:
        name = f"{prefix}cni_{verb.lower()}{masq}"
        figures |= flat(name, Summary.of(series.calls[verb]))
        if series.plugin[verb]:
            figures[f"{name}_in_plugin_p50_ms"] = Summary.of(series.plugin[verb]).p50
    return figures


def _at_once(prefix: str, engine: Engine, series: Bursts) -> Figures:
    figures: Figures = {}
    for verb in VERBS:
        name = f"{prefix}cni_{verb.lower()}{engine.masq}"
        calls = series.calls[verb]
        figures |= flat(f"{name}_{PARALLEL}", Summary.of(calls))
        figures[f"{name}_{PARALLEL}_per_s"] = len(calls) / series.wall[verb]
        spent = series.callers[verb]
        if engine.kind != "reference":
            user, system = (seconds / len(calls) * 1e3 for seconds in series.cpu[verb])
            figures |= {f"{name}_daemon_user_ms": user, f"{name}_daemon_system_ms": system}
            spent += sum(series.cpu[verb])
        figures[f"{name}_cpu_ms"] = spent / len(calls) * 1e3
    return figures


def _ratios(figures: Figures, prefix: str) -> Figures:
    """Each of ours over the reference, within this run."""
    ratios: Figures = {}
    for verb in (verb.lower() for verb in VERBS):
        for masq in ("", "_masq"):
            for rank in ("p50", "p99"):
                name = f"cni_{verb}{masq}_{rank}"
                ratios |= _ratio(figures, f"{prefix}{name}", f"reference_{name}", "_ms", "_ratio")
            name = f"cni_{verb}{masq}"
            ratios |= _ratio(figures, f"{prefix}{name}", f"reference_{name}", "_cpu_ms", "_cpu_ratio")
            name += f"_{PARALLEL}"
            ratios |= _ratio(figures, f"{prefix}{name}", f"reference_{name}", "_per_s", "_throughput_ratio")
    return ratios


def _ratio(figures: Figures, ours: str, theirs: str, of: str, name: str) -> Figures:
    measured = ours + of in figures and theirs + of in figures
    return {ours + name: figures[ours + of] / figures[theirs + of]} if measured else {}


def _shares(figures: Figures) -> Figures:
    """Where the time of an ADD of the default goes, of medians: start, plugin, and the road between the two."""
    shares: Figures = {}
    for masq in ("", "_masq"):
        keys = (f"cni_add{masq}_p50_ms", f"cni_add{masq}_in_plugin_p50_ms", "entrypoint_alone_p50_ms")
        if all(key in figures for key in keys):
            whole, inside, alone = (figures[key] for key in keys)
            shares[f"cni_add{masq}_on_the_road_ms"] = whole - inside - alone
    return shares
