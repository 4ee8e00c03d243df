"""What the command line shows, as rich renderables.

Owns: the choice and order of columns, and the wording of numbers and times.
Refuses: to print, to make requests, to lay out (see `listing`), and to know where the plain data comes from.
"""

import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from rich.console import Group, RenderableType
from rich.text import Text

from nodeplug.cli.listing import CUT, Listing, Paragraph

_STYLES: Final = {
    "running": "green",
    "ok": "green",
    "starting": "yellow",
    "failed": "red",
    "refused": "red",
    "stopped": "dim",
    "quarantined": "red",
}
_BELOW: Final = frozenset(
    {
        *("USES", "FROM", "CLAIMS", "REASON", "PLUGIN", "PROBLEM"),
        *("CLAIM", "ADDRESSES", "VOLUME", "PUBLISHED AT", "ABOUT", "ERROR"),
    }
)
"""Columns that go below their row where it is too long."""
_RECENT: Final = 15
_REASONS: Final = 5
_IDS: Final = 3
_CONTAINER: Final = re.compile(r"\b([0-9a-f]{13})[0-9a-f]{51}\b")
"""A container id; the group is the part that crictl shows."""


def _short(text: str) -> str:
    return _CONTAINER.sub(rf"\1{CUT}", text)


def _about(row: Mapping[str, Any]) -> str:
    about = str(row.get("about", row["key"]))  # an older daemon sends only the key
    return "" if row["claim"].endswith(f":{about}") else _short(about)


def duration(seconds: float) -> str:
    """Format a duration in its two largest units, such as `3h 5m`, or as `12ms` below a second."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, word, small, other in ((86400, "d", 3600, "h"), (3600, "h", 60, "m")):
        if whole >= size:
            return f"{whole // size}{word} {whole % size // small}{other}"
    return f"{whole // 60}m {whole % 60}s"


def _word(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def plugins(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show plugins: name, origin, where it runs, state, claims, and the reason if one does not serve."""
    table = Listing("Plugins", "NAME", "USES", "FROM", "RUNS AS", "STATE", "CLAIMS", "REASON", below=_BELOW)
    for row in rows:
        state = "quarantined" if row["quarantined"] else row["state"]
        claims = "\n".join(row["claims"]) or "-"
        table.add(row["name"], row["uses"], row["distribution"], _where(row), _word(state), claims, row["reason"])
    return table if len(table) else Text("No plugin is enabled: add a [plugins.<name>] table.")


def _where(row: Mapping[str, Any]) -> str:
    """Say which process a plugin runs in; `row` may come from a daemon of an earlier release."""
    process, restarts = row.get("process"), row.get("restarts", 0)
    where = _process(process) if process else row.get("isolation", "")
    where = ", ".join(filter(None, (row.get("user", ""), where)))
    where = "\n".join(filter(None, (where, row.get("python", ""))))
    return where + (f"\nrestarts: {restarts}, last because {row['restarted']}" if restarts else "")


def _process(process: Mapping[str, Any]) -> str:
    cpu = f", CPU {duration(process['cpu_seconds'])}" if "cpu_seconds" in process else ""
    return f"process {process['pid']}, {process['memory_bytes'] >> 20} MiB{cpu}"


def available(names: Sequence[str]) -> RenderableType:
    """Show installed plugins that could be enabled."""
    return Paragraph([(f"Installed and not enabled: {', '.join(names) or 'none'}", "")])


def _with_kubelet(row: Mapping[str, Any]) -> Text:
    return Text("registered", style="green") if row["registered"] else Text("not registered", style="red")


def resources(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show resources: how many devices, whether kubelet knows them, and unhealthy devices by reason."""
    numbers = ("KUBELET", "HEALTHY", "ALLOCATED", "STREAMS")
    table = Listing("Resources", "RESOURCE", "PLUGIN", *numbers, "PROBLEM", below=_BELOW)
    for row in rows:
        said = row["error"] or row.get("absent", "")
        problem = "\n".join([*([said] if said else []), *_sick(row.get("units", ()))])
        healthy = f"{row['healthy']} of {row['devices']}"
        unconfirmed = row.get("unconfirmed", 0)
        allocated = f"{row['allocated']}" + (f", {unconfirmed} unconfirmed" if unconfirmed else "")
        table.add(row["resource"], row["plugin"], _with_kubelet(row), healthy, allocated, row["streams"], problem)
    return table


def csi_drivers(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show CSI drivers, and whether kubelet knows them."""
    table = Listing("CSI drivers", "DRIVER", "CLAIM", "KUBELET", "PROBLEM", below=_BELOW)
    for row in rows:
        table.add(row["driver"], row["claim"], _with_kubelet(row), row["problem"])
    return table


def dra_drivers(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show the drivers of Dynamic Resource Allocation, and the claims that they have prepared."""
    table = Listing("DRA drivers", "DRIVER", "KUBELET", "POOL OR CLAIM", "DEVICES", "PROBLEM", below=_BELOW)
    for row in rows:
        table.add(row["driver"], _with_kubelet(row), "", "", row["problem"])
        for pool in row["pools"]:
            ill = f", {pool['unhealthy']} unhealthy" if pool["unhealthy"] else ""
            table.add("", "", pool["pool"], f"{pool['devices']}{ill}", "")
        for claim in row["claims"]:
            users = [f"  {one}" for one in claim.get("containers", ())]
            table.add("", "", "\n".join([f"{claim['claim']} ({claim['phase']})", *users]), str(len(claim["ids"])), "")
    return table


def csi_cluster(answer: Mapping[str, Any]) -> RenderableType:
    """Show what a cluster knows of the node's CSI drivers, and below what is wrong."""
    places = ("DRIVER", "KUBELET", "CSIDRIVER", "CSINODE", "CLASSES", "ROOM", "VOLUMES")
    table = Listing(f"CSI drivers of {answer['node']}", *places, "PROBLEM", below=_BELOW)
    unknown = answer["unknown"]
    for row in answer["drivers"]:
        held = row["csi_driver"]
        table.add(
            row["driver"],
            _verdict(row["registered"], "registered", "not registered"),
            _verdict(held is not None and not held["differences"], "ok", "missing" if held is None else "wrong"),
            _verdict(None if "csinodes" in unknown else row["csi_node"] is not None, "registered", "missing"),
            ", ".join(one["name"] for one in row["classes"]) or "-",
            ", ".join(f"{one['class']}: {one['capacity'] or '?'}" for one in row["capacities"]) or "-",
            len(row["volumes"]),
            "\n".join(row["problems"]),
        )
    told = [Paragraph([(f"{what} are not shown: {why}", "yellow")]) for what, why in unknown.items()]
    return Group(table, *told)


def migration(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show what becomes of each FlexVolume, and why one stays."""
    table = Listing("FlexVolumes", "VOLUME", "CLAIM", "FROM", "TO", "HANDLE", "OUTCOME", "PROBLEM", below=_BELOW)
    for row in rows:
        names = row["volume"], row["claim"] or "-", row["flex_driver"], row["csi_driver"], row["handle"]
        said = "" if row["on_one_node"] else "it names no node: --node says where it is"
        table.add(*names, _word(row["outcome"]), "\n".join(filter(None, (row["problem"], said))))
    return table


def _verdict(held: bool | None, good: str, bad: str) -> Text:
    return Text("?") if held is None else Text(good, style="green") if held else Text(bad, style="red")


def _sick(units: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a line per reason for unhealthy devices, the most frequent first."""
    reasons: dict[str, list[str]] = {}
    for unit in units:
        if not unit["healthy"]:
            reasons.setdefault(unit["reason"] or "no reason is given", []).append(unit["id"])
    grouped = sorted(reasons.items(), key=lambda item: -len(item[1]))
    lines = [_of_one_reason(reason, ids) for reason, ids in grouped[:_REASONS]]
    more = [ids for _, ids in grouped[_REASONS:]]
    if more:
        lines.append(f"{sum(map(len, more))} more unhealthy, for {len(more)} other reasons: --json has each")
    return lines


def _of_one_reason(reason: str, ids: Sequence[str]) -> str:
    if len(ids) == 1:
        return f"{ids[0]}: {reason}"
    more = f" and {len(ids) - _IDS} more" if len(ids) > _IDS else ""
    return f"{len(ids)} unhealthy: {reason} ({', '.join(ids[:_IDS])}{more})"


def attachments(rows: Iterable[Mapping[str, Any]], now: float) -> RenderableType:
    """Show network attachments, oldest first."""
    places = ("NETWORK", "CONTAINER", "INTERFACE", "CLAIM", "ADDRESSES")
    table = Listing("Network attachments", *places, "AGE", below=_BELOW)
    for row in sorted(rows, key=lambda row: float(row["since"])):
        age = duration(max(0.0, now - row["since"]))
        addresses = "\n".join(row["addresses"])
        table.add(row["network"], _short(row["container_id"]), row["ifname"], row["claim"], addresses, age)
    return table


def volumes(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show volumes and where they are published."""
    table = Listing("Volumes", "DRIVER", "VOLUME", "PHASE", "PUBLISHED AT", below=_BELOW)
    for row in rows:
        table.add(row["driver"], row["volume_id"], row["phase"], "\n".join(row["targets"]) or "-")
    return table


def calls(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show the calls in flight, oldest first."""
    table = Listing("Calls in flight", "REQUEST", "VERB", "CLAIM", "ABOUT", "AGE", "", below=_BELOW)
    for row in sorted(rows, key=lambda row: -float(row["age_seconds"])):
        late = Text("overdue", style="red") if row["overdue"] else Text("")
        table.add(row["id"], row["verb"], row["claim"], _about(row), duration(row["age_seconds"]), late)
    return table


def provisioner(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show what the provisioner cannot do at present."""
    table = Listing("The provisioner tries again", "ABOUT", "WHY", below=_BELOW)
    for row in rows:
        table.add(row["about"], row["problem"])
    return table


def extender(row: Mapping[str, Any]) -> RenderableType:
    """Show where kube-scheduler finds which extenders."""
    ends = row["certificate_expires"]
    until = f", certificate until {datetime.fromtimestamp(ends, tz=UTC):%Y-%m-%d}" if ends is not None else ""
    table = Listing(f"Scheduler extenders at {row['address']}{until}", "URLPREFIX", "PLUGIN", "VERBS", below=_BELOW)
    for one in row["extenders"]:
        table.add(f"{row['address']}/{one['name']}", one["plugin"], ", ".join(one["verbs"]))
    return table


def networks(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show what is not known or done at present of the networks of the cluster."""
    table = Listing("Networks of the cluster", "ABOUT", "WHY", below=_BELOW)
    for row in rows:
        table.add(row["about"], row["problem"])
    return table


def published(row: Mapping[str, Any]) -> RenderableType:
    """Show what was written into the cluster's objects, when, and what is in the way."""
    at = datetime.fromtimestamp(row["written_at"], tz=UTC).strftime("%m-%d %H:%M:%SZ") if row["written_at"] else "never"
    table = Listing(f"In the cluster, Node written {at}", "WHAT", "NAME", "VALUE", below=_BELOW)
    for name, value in row["labels"].items():
        table.add("label", name, value)
    for name, size in row["annotations"].items():
        table.add("annotation", name, f"{size} characters")
    for name in row["conditions"]:
        table.add("condition", name, "")
    for name in row["config_maps"]:
        table.add("ConfigMap", name, "")
    events = row["events"]
    table.add("pods", "annotated", str(row["pods"]))
    table.add("events", "sent, waiting, lost", f"{events['sent']}, {events['waiting']}, {events['lost']}")
    for path, who in row["left_to_others"].items():
        table.add(Text("left to others", style="yellow"), path, who)
    for one in row["problems"]:
        table.add(Text("problem", style="red"), one["about"], one["problem"])
    for one in row["left_out"]:
        table.add(Text("left out", style="red"), "", one)
    return table


def left_by_node(node: str, rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show what a lost node has left, and what becomes of it."""
    table = Listing(f"Left by {node}", "KIND", "NAME", "FATE", "WHY", below=_BELOW)
    for row in rows:
        table.add(row["kind"], row["name"], row["fate"], row["why"])
    return table


def recent(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show the last finished calls, newest first, in UTC as in the log."""
    what = ("ENDED", "REQUEST", "VERB", "CLAIM", "ABOUT", "TOOK", "OUTCOME", "ERROR")
    table = Listing("Recent calls", *what, below=_BELOW)
    for row in list(rows)[:_RECENT]:
        ended = datetime.fromtimestamp(row["at"], tz=UTC).strftime("%m-%d %H:%M:%SZ")
        took, outcome = duration(row["seconds"]), _word(row["outcome"])
        error = " ".join(row.get("error", "").split())
        table.add(ended, row["id"], row["verb"], row["claim"], _about(row), took, outcome, error)
    return table


def status(answer: Mapping[str, Any], now: float | None = None) -> RenderableType:
    """Show the daemon's whole answer without empty parts, except for the plugins."""
    moment = time.time() if now is None else now
    parts: list[RenderableType] = [*_summary(answer), Text(""), plugins(answer["plugins"])]
    sections: Mapping[str, Callable[[Any], RenderableType]] = {
        "resources": resources,
        "csi": csi_drivers,
        "dra": dra_drivers,
        "provisioner": provisioner,
        "extender": extender,
        "networks": networks,
        "cluster": published,
        "attachments": lambda rows: attachments(rows, moment),
        "volumes": volumes,
        "calls": calls,
        "recent": recent,
    }
    parts += [render(answer[name]) for name, render in sections.items() if answer.get(name)]
    return Group(*parts)


def _summary(answer: Mapping[str, Any]) -> Iterable[RenderableType]:
    ready = ("ready", "green") if answer["ready"] else ("NOT READY", "bold red")
    place = f"nodeplug {answer['version']} on {answer['node']}, process {answer['pid']}"
    yield Paragraph([(f"{place}, up {duration(answer['uptime_seconds'])}: ", ""), ready])
    for name, reason in answer.get("reasons", {}).items():
        yield Paragraph([(f"{name}: {reason}", "red")], 2)
    kind, reason = (answer.get("entrypoints", {}).get(key, "") for key in ("kind", "reason"))
    if kind:
        yield Paragraph([(f"entrypoints: {kind}{reason and f' ({reason})'}", "")], 2)
    for what, why in answer.get("unknown", {}).items():
        yield Paragraph([(f"{what} are not shown, for they are not known: {why}", "yellow")], 2)
    if answer["spool"]:
        yield Paragraph([(f"{answer['spool']} deferred DELs wait to be replayed", "yellow")], 2)
    for claim, count in Counter(one["claim"] for one in answer.get("stranded", ())).items():
        text = f"{count} of them wait for {claim!r}, which no enabled plugin serves: enable it, or restart the node"
        yield Paragraph([(text, "yellow")], 2)


def report(document: Mapping[str, Any]) -> RenderableType:
    """Show what an installation did, one line per path, and the kind of the entrypoints."""
    styles = {"created": "green", "updated": "yellow", "removed": "red", "kept": "yellow"}
    lines = [
        Paragraph([(f"{word:<10} {path}", styles.get(word, ""))])
        for word, paths in document.items()
        if word not in {"entrypoints", "notes", "systemd", "warnings"}
        for path in paths
    ]
    lines += [Paragraph([(note, "")]) for note in document.get("notes", ())]
    if chosen := document.get("entrypoints"):
        lines.append(Paragraph([(f"entrypoints: {chosen['kind']} ({chosen['reason']})", "")]))
    if unit := document.get("systemd"):
        did = ", ".join(unit["steps"]) or "nothing to do"
        lines.append(Paragraph([(f"systemd: {did}; the daemon is {unit['state'] or 'stopped'}", "")]))
    return Group(*lines) if lines else Text("nothing to do")
