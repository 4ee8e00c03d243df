"""What the command line shows, as rich renderables.

Owns: the choice and order of columns, and the words for numbers and times.
Refuses: to print, to ask, and to know where the data came from: each function takes plain data. Every text is shown as
it is: rich's markup in a name or a reason has no effect.
"""

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

_STYLES: Final = {
    "running": "green",
    "ok": "green",
    "starting": "yellow",
    "failed": "red",
    "refused": "red",
    "stopped": "dim",
    "quarantined": "red",
}
_RECENT: Final = 15


def duration(seconds: float) -> str:
    """Return a length of time in its two largest units, such as `3h 5m`; parts of a second as `12ms`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for size, word, small, other in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{word} {whole % size // small}{other}"
    raise AssertionError(seconds)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _row(table: Table, *cells: object) -> None:
    table.add_row(*(cell if isinstance(cell, Text) else Text(str(cell)) for cell in cells))


def _word(word: str) -> Text:
    return Text(word, style=_STYLES.get(word, ""))


def plugins(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show plugins: name, origin, state, claims and the reason when one does not serve."""
    table = _table("Plugins", "NAME", "USES", "FROM", "STATE", "CLAIMS", "REASON")
    for row in rows:
        state = "quarantined" if row["quarantined"] else row["state"]
        _row(
            table,
            row["name"],
            row["uses"],
            row["distribution"],
            _word(state),
            "\n".join(row["claims"]) or "-",
            row["reason"],
        )
    return table if table.row_count else Text("No plugin is enabled: add a [plugins.<name>] table.")


def available(names: Sequence[str]) -> RenderableType:
    """Show which installed plugins could be enabled."""
    return Text(f"Installed and not enabled: {', '.join(names) or 'none'}")


def resources(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show resources: how many devices, and whether kubelet knows them."""
    table = _table("Resources", "RESOURCE", "PLUGIN", "KUBELET", "HEALTHY", "ALLOCATED", "STREAMS", "PROBLEM")
    for row in rows:
        known = Text("registered", style="green") if row["registered"] else Text("not registered", style="red")
        sick = [f"{unit['id']}: {unit['reason']}" for unit in row.get("units", ()) if not unit["healthy"]]
        problem = "\n".join([said, *sick] if (said := row["error"] or row.get("absent", "")) else sick)
        healthy = f"{row['healthy']} of {row['devices']}"
        _row(table, row["resource"], row["plugin"], known, healthy, row["allocated"], row["streams"], problem)
    return table


def attachments(rows: Iterable[Mapping[str, Any]], now: float) -> RenderableType:
    """Show network attachments, oldest first."""
    table = _table("Network attachments", "NETWORK", "CONTAINER", "INTERFACE", "CLAIM", "ADDRESSES", "AGE")
    for row in sorted(rows, key=lambda row: float(row["since"])):
        age = duration(max(0.0, now - row["since"]))
        addresses = "\n".join(row["addresses"])
        _row(table, row["network"], row["container_id"][:13], row["ifname"], row["claim"], addresses, age)
    return table


def volumes(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show volumes and where they are published."""
    table = _table("Volumes", "DRIVER", "VOLUME", "PHASE", "PUBLISHED AT")
    for row in rows:
        _row(table, row["driver"], row["volume_id"], row["phase"], "\n".join(row["targets"]) or "-")
    return table


def calls(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show the calls in flight, oldest first."""
    table = _table("Calls in flight", "REQUEST", "VERB", "CLAIM", "KEY", "AGE", "")
    for row in sorted(rows, key=lambda row: -float(row["age_seconds"])):
        late = Text("overdue", style="red") if row["overdue"] else Text("")
        _row(table, row["id"], row["verb"], row["claim"], row["key"], duration(row["age_seconds"]), late)
    return table


def recent(rows: Iterable[Mapping[str, Any]]) -> RenderableType:
    """Show the last finished calls, newest first."""
    table = _table("Recent calls", "REQUEST", "VERB", "CLAIM", "KEY", "TOOK", "OUTCOME", "ERROR")
    for row in list(rows)[:_RECENT]:
        took, outcome = duration(row["seconds"]), _word(row["outcome"])
        _row(table, row["id"], row["verb"], row["claim"], row["key"], took, outcome, row.get("error", ""))
    return table


def status(answer: Mapping[str, Any], now: float | None = None) -> RenderableType:
    """Show the daemon's whole answer; what is empty is left out, but for the plugins."""
    moment = time.time() if now is None else now
    parts: list[RenderableType] = [*_summary(answer), Text(""), plugins(answer["plugins"])]
    sections = {
        "resources": resources,
        "attachments": lambda rows: attachments(rows, moment),
        "volumes": volumes,
        "calls": calls,
        "recent": recent,
    }
    parts += [render(answer[name]) for name, render in sections.items() if answer[name]]
    return Group(*parts)


def _summary(answer: Mapping[str, Any]) -> Iterable[Text]:
    ready = ("ready", "green") if answer["ready"] else ("NOT READY", "bold red")
    place = f"nodeplug {answer['version']} on {answer['node']}, process {answer['pid']}"
    yield Text.assemble(place, f", up {duration(answer['uptime_seconds'])}: ", ready)
    for name, reason in answer.get("reasons", {}).items():
        yield Text(f"  {name}: {reason}", style="red")
    kind, reason = (answer.get("entrypoints", {}).get(key, "") for key in ("kind", "reason"))
    if kind:
        yield Text(f"  entrypoints: {kind}{reason and f' ({reason})'}")
    if answer["spool"]:
        yield Text(f"  {answer['spool']} deferred DELs wait to be replayed", style="yellow")


def report(document: Mapping[str, Any]) -> RenderableType:
    """Show what an installation did, one line per path, and of which kind the entrypoints are."""
    styles = {"created": "green", "updated": "yellow", "removed": "red", "kept": "yellow"}
    lines = [
        Text(f"{word:<10} {path}", style=styles.get(word, ""), overflow="fold")
        for word, paths in document.items()
        if word != "entrypoints"
        for path in paths
    ]
    if chosen := document.get("entrypoints"):
        lines.append(Text(f"entrypoints: {chosen['kind']} ({chosen['reason']})", overflow="fold"))
    return Group(*lines) if lines else Text("nothing to do")


def toml(document: Mapping[str, Any]) -> str:
    """Write a configuration as TOML; None is left out."""
    return "\n".join(_toml_table(document, ())).strip() + "\n"


def _toml_table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    inner = {key: value for key, value in table.items() if isinstance(value, Mapping) and value}
    plain = {key: value for key, value in table.items() if key not in inner and value is not None}
    if path and (plain or not inner):
        yield f"\n[{'.'.join(map(_toml_key, path))}]"
    for key, value in plain.items():
        yield f"{_toml_key(key)} = {_toml_value(value)}"
    for key, value in inner.items():
        yield from _toml_table(value, (*path, key))


def _toml_key(key: str) -> str:
    return key if key and key.isascii() and key.replace("-", "").replace("_", "").isalnum() else _toml_value(key)


def _toml_value(value: object) -> str:
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{_toml_key(key)} = {_toml_value(item)}" for key, item in value.items() if item is not None)
        return f"{{ {pairs} }}" if pairs else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(_toml_value(item) for item in value if item is not None)}]"
    # What is left are JSON's scalars, which TOML writes alike, save for the one control character that JSON allows.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
