"""The figures as tables, for a terminal and for `docs/performance.md`.

Owns: which figures stand together, and their rounding.
Refuses: to compute any.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from rich.table import Table

from bench.figures import GATES

WORDS: Final = {True: "met", False: "NOT met", None: "not measured"}
CALLS: Final = {
    f"{verb}{words}": f"cni_{verb.lower()}{masq}"
    for masq, words in (("", ""), ("_masq", ", ipMasq"))
    for verb in ("ADD", "CHECK", "DEL")
}
KINDS: Final = {"native": "compiled", "script": "script"}
VALUES: Final = {
    "shim_p50_ms": "entrypoint, daemon and back, without work (STATUS)",
    "register_to_first_list_p50_ms": "Register until kubelet has the first list",
    "allocate_p50_ms": "Allocate",
    "preferred_allocation_p50_ms": "GetPreferredAllocation",
    "health_to_stream_p50_ms": "a device is gone until kubelet has the list that says so",
}
DAEMON: Final = {
    "registered_after_start_s": ("start of the daemon until kubelet has the first list, s", 0.0),
    "listed_after_crash_s": ("the same after kill -9: until kubelet has the last list, s", 0.3),
    "default_memory_mib": (
        "memory (Pss) of the default installation with all processes, right after its start, MiB",
        80.0,
    ),
    "repair_p50_ms": (
        "somebody removes a bridge, its address, its route or the rules until they are back, ms, p50",
        0.0,
    ),
    "repair_p99_ms": ("the same, p99", 1000.0),
    "daemon_rss_mib": ("resident memory of the daemon after all these calls, MiB", 0.0),
    "daemon_idle_cpu_percent": ("CPU while nobody calls, %", 0.0),
}
"""Figures of the daemon itself, with their limits; 0 means none."""

GPU: Final = {
    "gpu_first_list_ms": ("8 cards, 640 units: the first list after a stream opens, p99", 50),
    "gpu_prefer_16000_ms": ("GetPreferredAllocation among 16,000 units, p50", 25),
    "gpu_allocate_p99_ms": ("Allocate beside 100 open streams, p99", 5),
    "gpu_health_to_streams_ms": ("a card is lost until 100 streams say so, p50", 100),
    "gpu_loop_longest_step_ms": ("the longest step of the daemon's event loop meanwhile", 20),
}

PROCESSES: Final = {
    "allocate_process_price_ms": ("Allocate of eight ids, more than in a thread, ms", 0.3),
    "add_process_price_ms": ("ADD, more than in a thread, ms", 0.3),
    "mount_process_price_ms": ("mount, more than in a thread, ms", 0.3),
    "allocate_long_process_price_ms": ("Allocate of eight ids out of a list of 4000, more than in a thread, ms", 0.0),
    "first_list_thread_ms": ("a section is added until kubelet has the first list, in a thread, ms", 0.0),
    "first_list_process_ms": ("the same in a process, ms", 0.0),
    "first_list_process_price_ms": ("the same, more than in a thread, ms", 0.0),
    "process_pss_mib": ("memory of a process (Pss), MiB", 25.0),
    "neighbour_process_p99_ratio": ("a neighbour's p99 while a plugin in a process burns a core", 1.15),
    "neighbour_thread_p99_ratio": ("the same while a plugin in a thread does", 0.0),
}
"""Figures of plugins in processes, with their limits; 0 means none. Ratios are to an unrelated busy program."""

VOLUMES: Final = {
    "csi_publish_p50_ms": ("publish over CSI, p50", 10.0),
    "csi_publish_p99_ms": ("publish over CSI, p99", 0.0),
    "flex_mount_p50_ms": ("the same volume mounted over FlexVolume, p50", 0.0),
    "flex_mount_p99_ms": ("the same volume mounted over FlexVolume, p99", 0.0),
    "csi_publish_price_ms": ("publish over CSI, more than the mount over FlexVolume", 0.0),
    "csi_unpublish_p50_ms": ("unpublish over CSI, p50", 0.0),
    "csi_unpublish_p99_ms": ("unpublish over CSI, p99", 0.0),
    "flex_unmount_p50_ms": ("unmount over FlexVolume, p50", 0.0),
    "flex_unmount_p99_ms": ("unmount over FlexVolume, p99", 0.0),
}
"""Figures of a staged volume over both fronts, in the daemon's part of a call, with their limits; 0 means none."""

CLAIMS: Final = {
    "claim_to_bound_s": ("from a claim of 32 MiB (ext4) to Bound, s", 1.0),
    "standard_claim_to_bound_s": ("the same by the standard provisioner, in turn, s", 0.0),
    "claim_to_bound_ratio": ("ours by the standard one", 0.0),
    "volume_from_nothing_ms": ("CreateVolume and publish of 1 GiB (xfs), ms", 150.0),
    "memory_without_mib": ("memory (Pss) of a daemon without plugins, MiB", 0.0),
    "memory_with_mib": ("the same with five drivers and the provisioner, each with a volume under a pod, MiB", 0.0),
    "memory_more_mib": ("what these add, MiB", 60.0),
    "standard_provisioner_mib": ("the standard provisioner of one driver (Pss), without its other sidecars, MiB", 0.0),
}
"""Figures of claims, medians, with their limits; 0 means none."""

EXTENDERS: Final = {
    "process_filter_p50_ms": ("filter over 500 nodes by name, ms", 0.0),
    "process_filter_p99_ms": ("the same, p99, ms", 20.0),
    "process_prioritize_p50_ms": ("prioritize, ms", 0.0),
    "process_prioritize_p99_ms": ("the same, p99, ms", 20.0),
    "process_pod_ms": ("filter and prioritize of one pod, mean of many in a row, ms (5 are 200 pods a second)", 5.0),
    "process_daemon_cpu_ms": ("of the processor in the daemon for each call, ms", 0.0),
    "process_filter_whole_p50_ms": ("filter over 500 whole nodes, 15 MB, ms", 0.0),
    "thread_filter_p50_ms": ("with the plugin in a thread, nearly all the daemon's own: filter, ms", 0.0),
    "thread_filter_p99_ms": ("the same, p99, ms", 20.0),
    "thread_pod_ms": ("filter and prioritize of one pod, mean, ms", 5.0),
    "thread_daemon_cpu_ms": ("of the processor in the daemon for each call, ms", 0.0),
    "thread_filter_whole_p50_ms": ("filter over 500 whole nodes, ms", 0.0),
    "cards_filter_p50_ms": ("gpu-extender in a cluster of 5,000 nodes of 8 cards: filter over 500 by name, ms", 0.0),
    "cards_filter_p99_ms": ("the same, p99, ms", 20.0),
    "cards_prioritize_p50_ms": ("prioritize, ms", 0.0),
    "cards_prioritize_p99_ms": ("the same, p99, ms", 20.0),
    "cards_filter_changing_p99_ms": ("filter, p99, where 20 of them say something new before each call, ms", 20.0),
    "cards_ms_per_pod": ("filter of one pod, mean of many in a row, ms (5 are 200 pods a second)", 5.0),
    "cards_seen_ms": ("from a node's word to an answer that has it, the longest of ten, ms", 2000.0),
    "cards_memory_mib": ("memory of the extender with 5,000 nodes (Pss), MiB", 200.0),
}
"""Figures of a scheduler extender that answers at once, with their limits; 0 means none."""

CLAIMED: Final = {
    "published_p50_ms": ("from the start of a daemon until 640 units of 8 cards are in slices, ms", 1000.0),
    "prepare_p50_ms": ("NodePrepareResources of one claim, its durable record and CDI spec included, ms", 20.0),
    "prepare_p99_ms": ("the same, p99, ms", 0.0),
    "unprepare_p50_ms": ("NodeUnprepareResources, ms", 0.0),
    "told_p99_ms": ("from the fault of a card to the taint in its slice, the longest, ms", 300.0),
    "quiet_requests": ("requests to the API server of a quiet node in 5 s, the watch aside", 0.0),
}
"""Figures of cards by claims, with their limits; 0 means none."""

RELOADING: Final = {
    "slowest_p50_ms": ("the slowest admission of a reload, ms", 100.0),
    "slowest_p90_ms": ("the same, p90 of the reloads, ms", 0.0),
    "slowest_of_all_ms": ("the slowest of all, ms", 100.0),
    "rest_p50_ms": ("an admission at rest, ms", 0.0),
    "rest_p99_ms": ("the same, p99, ms", 0.0),
    "reload_p50_ms": ("from SIGHUP until the changed section serves, ms", 0.0),
}
"""Figures of reloads while cards are held, with their limits; 0 means none."""

NETWORKS: Final = {
    "pod_add_p50_ms": ("ADD of a pod with three networks, one execution, ms", 0.0),
    "reference_pod_add_p50_ms": ("the same networks by three of the reference's bridge, in turn, ms", 0.0),
    "pod_add_ratio": ("ours by the reference's", 1.0),
    "pod_del_p50_ms": ("DEL, ms", 0.0),
    "reference_pod_del_p50_ms": ("three of the reference's, ms", 0.0),
    "pod_del_ratio": ("ours by the reference's", 1.0),
    "without_mib": ("memory (Pss) of a daemon with the plugins and without `[networks]`, MiB", 0.0),
    "with_mib": ("the same with `[networks]`, MiB", 0.0),
    "many_mib": ("the same with ten thousand NetworkAttachmentDefinitions, MiB", 0.0),
    "many_known_s": ("from the start of that daemon until all are known and kept for the next start, s", 0.0),
}
"""Figures of networks as objects, medians, with their limits; 0 means none."""

CHAIN: Final = {
    f"{verb}{burst}": f"chain_{verb.lower()}{name}"
    for burst, name in (("", "_p50_ms"), (", 16 at once, chains per second", "_16_per_s"))
    for verb in ("ADD", "CHECK", "DEL")
}
GROWTH: Final = {
    "lives_first_p50_ms": ("a thousand attachments one after another: ADD, the first hundred, p50", 0.0),
    "lives_last_p50_ms": ("ADD, the last hundred, p50", 0.0),
    "lives_growth": ("the last hundred by the first", 1.3),
    "attachments_first_p50_ms": ("a thousand attachments at once: ADD, the first hundred, p50", 0.0),
    "attachments_last_p50_ms": ("ADD, the last hundred, p50", 0.0),
    "attachments_growth": ("the last hundred by the first", 1.3),
    "kernel_first_p50_ms": ("the kernel alone: the first hundred of a thousand pairs at once, p50", 0.0),
    "kernel_last_p50_ms": ("the last hundred, p50", 0.0),
    "kernel_growth": ("the last hundred by the first", 0.0),
    "held_add_p50_ms": ("ADD where 10,000 addresses are held, p50", 4.0),
    "held_status_p50_ms": ("STATUS where 10,000 addresses are held, p50", 10.0),
}
"""What grows with a node, with limits; 0 means none."""


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


TABLES: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "claims": claims,
    "claimed": claimed,
    "reloading": reloading,
    "networks": networks,
    "extenders": extenders,
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
