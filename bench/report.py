"""The figures as tables, for a terminal and for `docs/performance.md`.

Owns: how tables look, and the rounding of figures; which figures they show is in `measures.py`.
Refuses: to compute any.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from bench.figures import GATES
from bench.measures import (
    CHAIN,
    CLAIMED,
    CLAIMS,
    DAEMON,
    EXTENDERS,
    GPU,
    GROWTH,
    NETWORKS,
    PROCESSES,
    RELOADING,
    VALUES,
    VOLUMES,
    WORST_INPUTS,
)

WORDS: Final = {True: "met", False: "NOT met", None: "not measured"}
CALLS: Final = {
    f"{verb}{words}": f"cni_{verb.lower()}{masq}"
    for masq, words in (("", ""), ("_masq", ", ipMasq"))
    for verb in ("ADD", "CHECK", "DEL")
}
KINDS: Final = {"native": "compiled", "script": "script"}


def reference(figures: Mapping[str, Any]) -> str:
    """Name the reference of a run; an older one tells the version of Debian's alone."""
    said = str(figures["reference_version"])
    return f"Debian's containernetworking-plugins {said}" if said[:1].isdigit() else said


def everything(figures: Mapping[str, Any]) -> Table:
    """Return every figure, for a terminal."""
    table = Table("measure", "p50 / p90 / p99 ms, or value", title=str(figures["machine"]))
    names = sorted(key.removesuffix("_p90_ms") for key in figures if key.endswith("_p90_ms"))
    for name in names:
        table.add_row(name, _percentiles(figures, name, 2))
    told = {f"{name}_{percentile}_ms" for name in names for percentile in ("p50", "p90", "p99")}
    for key, value in sorted(figures.items()):
        if key not in told and isinstance(value, float):
            table.add_row(key, f"{value:.2f}")
    return table


def gates(figures: Mapping[str, Any]) -> Table:
    """Return the gates, for a terminal."""
    table = Table("gate", "limit", "measured", "")
    for row in _gate_rows(figures):
        table.add_row(*row)
    return table


def markdown(figures: Mapping[str, Any]) -> str:
    """Return all tables of the page."""
    other = next((kind for kind in KINDS if f"{kind}_cni_add_p50_ms" in figures), "")
    tables = f"iptables {figures['reference_iptables_version']}"
    where = f"{figures['machine']}, load average {figures['load_average']:.1f}"
    parts = [
        f"Measured on {figures['date']} ({where}). The reference is {reference(figures)}, with {tables}.",
        *([f"**Not everything was measured.** {figures['failed']}."] if figures.get("failed") else []),
        _table(("gate", "limit", "measured", ""), _gate_rows(figures)),
        "One call at a time, p50 / p90 / p99 in milliseconds; the ratio is of p50 to the reference:",
        _calls(figures, other),
        "Sixteen callers at once, calls per second:",
        _bursts(figures, other),
        *_of_chain(figures, other),
        "Everything else:",
        _table(("measure", "p50 / p90 / p99, ms"), _value_rows(figures, other)),
        _table(("measure", "limit", "measured", ""), _limited_rows(figures, DAEMON)),
        "The GPU plugin with simulated cards, in milliseconds:",
        _table(("measure", "limit", "measured", ""), _gpu_rows(figures)),
        "A plugin in a process of its own; a ratio is to a neighbour's p99 beside an unrelated busy program:",
        _table(("measure", "limit", "measured", ""), _limited_rows(figures, PROCESSES)),
        *_of_volumes(figures),
        "Where the time of an ADD goes, medians in milliseconds:",
        _table(("part", "ADD", "with ipMasq"), _part_rows(figures)),
    ]
    return "\n\n".join(parts)


def claims(figures: Mapping[str, Any]) -> str:
    """Return the table of claims of volumes."""
    return _measured(figures, CLAIMS)


def extenders(figures: Mapping[str, Any]) -> str:
    """Return the table of scheduler extenders."""
    ahead = ", client and daemon before everything else by SCHED_FIFO" if figures["real_time"] else ""
    return _measured(figures, EXTENDERS, ahead)


def claimed(figures: Mapping[str, Any]) -> str:
    """Return the table of devices by claims."""
    return _measured(figures, CLAIMED)


def reloading(figures: Mapping[str, Any]) -> str:
    """Return the table of reloads while cards are held."""
    return _measured(figures, RELOADING)


def networks(figures: Mapping[str, Any]) -> str:
    """Return the table of networks as objects."""
    machine = f"{figures['machine']}, {figures['reference_version']}"
    return _measured({**figures, "machine": machine}, NETWORKS)


def worst_inputs(figures: Mapping[str, Any]) -> str:
    """Return the table of a neighbour of the worst inputs."""
    return _measured(figures, WORST_INPUTS)


TABLES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "claims": claims,
    "claimed": claimed,
    "reloading": reloading,
    "networks": networks,
    "extenders": extenders,
    "worst_inputs": worst_inputs,
}
"""What writes the table of a run, by the name of its results and of its marks on the page."""


def _measured(figures: Mapping[str, Any], measures: Mapping[str, tuple[str, float]], ahead: str = "") -> str:
    where = f"{figures['machine']}, load average {figures['load_average']:.1f}{ahead}"
    rows = _limited_rows(figures, measures)
    return f"Measured on {figures['date']} ({where}).\n\n{_table(('measure', 'limit', 'measured', ''), rows)}"


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {' | '.join(cells)} |" for cells in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:]])


def _percentiles(figures: Mapping[str, Any], name: str, digits: int = 1) -> str:
    if f"{name}_p50_ms" not in figures:
        return "-"
    return " / ".join(f"{figures[f'{name}_{rank}_ms']:.{digits}f}" for rank in ("p50", "p90", "p99"))


def _number(figures: Mapping[str, Any], key: str, digits: int = 2) -> str:
    return f"{figures[key]:.{digits}f}" if key in figures else "-"


def _gate_rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for gate in GATES:
        limit = f"{'at most' if gate.at_most else 'at least'} {gate.limit:.2f} of the reference"
        yield gate.what, limit, _number(figures, gate.key), WORDS[gate.met(figures)]


def _calls(figures: Mapping[str, Any], other: str) -> str:
    return _compared(
        figures,
        other,
        lambda name: _percentiles(figures, name),
        lambda name: _number(figures, f"{name}_p50_ratio"),
    )


def _bursts(figures: Mapping[str, Any], other: str) -> str:
    return _compared(
        figures,
        other,
        lambda name: _number(figures, f"{name}_16_per_s", 0),
        lambda name: _number(figures, f"{name}_16_throughput_ratio"),
    )


def _compared(figures: Mapping[str, Any], other: str, value: Callable[[str], str], ratio: Callable[[str], str]) -> str:
    """Return one row per call: the reference, then each kind of ours with its ratio."""
    prefixes = {KINDS.get(figures["entrypoints"], "nodeplug"): ""} | ({KINDS[other]: f"{other}_"} if other else {})
    rows = []
    for call, name in CALLS.items():
        row = [call, value(f"reference_{name}")]
        for prefix in prefixes.values():
            row += [value(prefix + name), ratio(prefix + name)]
        rows.append(tuple(row))
    return _table(("call", "reference", *(word for kind in prefixes for word in (kind, "ratio"))), rows)


def _value_rows(figures: Mapping[str, Any], other: str) -> Iterator[tuple[str, ...]]:
    for key, words in VALUES.items():
        yield words, _percentiles(figures, key.removesuffix("_p50_ms"), 2)
        if key == "shim_p50_ms" and other:
            yield f"{words}, {KINDS[other]}", _percentiles(figures, f"{other}_shim", 2)


def _gpu_rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    for key, (words, limit) in GPU.items():
        met = figures[key] <= limit if key in figures else None
        yield words, f"at most {limit}", _number(figures, key, 1), WORDS[met]


def _of_volumes(figures: Mapping[str, Any]) -> list[str]:
    """Return the table of volumes with its sentence; nothing for a run that is older than the measure."""
    if not VOLUMES.keys() & figures.keys():
        return []
    told = "A staged volume for one more pod, over both fronts in turn, the daemon's part of the call in milliseconds:"
    return [told, _table(("measure", "limit", "measured", ""), _limited_rows(figures, VOLUMES))]


def _of_chain(figures: Mapping[str, Any], other: str) -> list[str]:
    """Return the tables of the whole chain with their sentences; nothing for a run that is older than the measure."""
    if not GROWTH.keys() & figures.keys():
        return []
    ours = {KINDS.get(figures["entrypoints"], "nodeplug"): ""} | ({KINDS[other]: f"{other}_"} if other else {})
    rows = [
        (call, *(_number(figures, f"{prefix}{key}", 1) for prefix in ("reference_", *ours.values())))
        for call, key in CHAIN.items()
    ]
    return [
        "The whole chain (bridge, host-local, ipMasq, portmap, bandwidth, tuning, firewall), medians in milliseconds:",
        _table(("call", "reference", *ours), rows),
        "What grows with a node, in milliseconds:",
        _table(("measure", "limit", "measured", ""), _limited_rows(figures, GROWTH)),
    ]


def _limited_rows(figures: Mapping[str, Any], measures: Mapping[str, tuple[str, float]]) -> Iterator[tuple[str, ...]]:
    for key, (words, limit) in measures.items():
        met = figures[key] <= limit if key in figures else None
        yield words, f"at most {limit:g}" if limit else "", _number(figures, key), WORDS[met] if limit else ""


def _part_rows(figures: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    parts = {
        "start and end of the entrypoint (VERSION)": ("entrypoint_alone_p50_ms", "entrypoint_alone_p50_ms"),
        "on the road: connect, frame, threads, record, answer": _both("on_the_road_ms"),
        "in the plugin, Python included": _both("in_plugin_p50_ms"),
        "of that in netlink, traced": _both("in_netlink_ms"),
        "netlink requests, count": _both("netlink_requests"),
        "of that in files (addresses, sysctls), traced": _both("in_files_ms"),
        "the daemon's CPU per ADD, user": _both("daemon_user_ms"),
        "the daemon's CPU per ADD, system": _both("daemon_system_ms"),
    }
    for words, keys in parts.items():
        yield words, *(_number(figures, key) for key in keys)


def _both(ending: str) -> tuple[str, str]:
    return f"cni_add_{ending}", f"cni_add_masq_{ending}"
