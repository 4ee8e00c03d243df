# ruff: noqa: INP001 - a script beside its outputs, not a package
"""Write what the documentation repeats from the code: tables of keys, errors, hooks, examples, the manual page.

    python docs/generate.py            into the pages of this folder, where they are committed
    python docs/generate.py FOLDER     into a copy of this folder, to compare

A page says what it wants between `<!-- generated: KIND ARGUMENT -->` and `<!-- end -->`; the rest is written by hand.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePath
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import contract_values
import manpage
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import nodeplug.testing
import pytest_nodeplug
from nodeplug.config import (
    ClusterSection,
    DraSection,
    ExtenderSection,
    NetworksSection,
    PluginSection,
    ProvisionerSection,
    Supervisor,
)
from nodeplug.contract import before
from nodeplug.contract.errors import WIRES, DelegateFailed
from nodeplug.contract.hookspecs import ANSWERS
from nodeplug.contract.inputs import INPUTS, Input
from nodeplug.fields import show_quantity, write_quantity
from nodeplug.hosting.call import Call
from nodeplug.hosting.rights import RIGHTS
from nodeplug.hosting.slot import Slot
from nodeplug.loading.discovery import find
from nodeplug.observe.metrics import OK, Metrics
from nodeplug.testing.conformance import RULES
from nodeplug.testing.isolation import ISOLATIONS

HERE: Final = Path(__file__).resolve().parent
_BLOCK: Final = re.compile(r"(<!-- generated: (\w+)(?: ([\w.-]+))? -->\n).*?(<!-- end -->)", re.DOTALL)
_VALIDATED: Final = {"parse_duration": "duration", "_from_config": "size"}
_WORDS: Final[Mapping[Any, str]] = {str: "text", bool: "true or false", int: "integer", float: "number", Any: "any"}

_OTHERS = {
    '`Claim("cni", name)`': "`CniClaim(name)`",
    '`Claim("device", name)`': "`DeviceClaim(name)`",
    '`Claim("volume", name)`': "`VolumeClaim(name)`",
    "`DeviceAllocate(resource, ids, devices)` and other requests by position": "by keyword",
    '`Device(id, True, "")`, `Grant(env)`, `CniResult((link,), ips)`': "all but the obvious first field by keyword",
    '`[project.entry-points."nodeplug"]`': '`[project.entry-points."nodeplug.v1"]`',
    "`volume_attach` that answers the device's path": "`return VolumeAttached(device=path)`",
    "`VolumeDetach.volume_id`": "`VolumeDetach.volume_name`, which it always was",
    "`request.options` of detach, unpublish, unstage": "always empty, and removed",
    "`fold(request.config)`, then looking for keys": "`request.parse(Model)`; `fold` stays",
}
"""What else changed between the contract before version 1 and that of version 1, as one writes it."""


def main(folder: Path) -> None:
    """Bring every page of a folder up to date."""
    for page in folder.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        fresh = _BLOCK.sub(lambda block: f"{block[1]}{_generate(block[2], block[3], folder)}\n{block[4]}", text)
        if fresh != text:
            page.write_text(fresh, encoding="utf-8")
    (folder / manpage.PLACE).write_text(manpage.page(), encoding="utf-8")


def _generate(kind: str, argument: str, folder: Path) -> str:
    kinds: Mapping[str, Callable[[], str]] = {
        "example": lambda: f"```python\n{(folder / 'examples' / argument).read_text(encoding='utf-8')}```",
        "supervisor": lambda: _keys(Supervisor),
        "provisioner": lambda: _keys(ProvisionerSection),
        "extender": lambda: _keys(ExtenderSection),
        "networks": lambda: _keys(NetworksSection),
        "cluster": lambda: _keys(ClusterSection),
        "dra": lambda: _keys(DraSection),
        "section": lambda: _keys(PluginSection),
        "plugin": lambda: _keys(find(argument).config_model),
        "errors": _errors,
        "rights": _rights,
        "inputs": _inputs,
        "metrics": _metrics,
        "hook": lambda: _hook(argument),
        "before": _before,
        "values": lambda: contract_values.reference(argument),
        "fixtures": _fixtures,
        "rules": lambda: _rules_of(argument),
        "methods": lambda: _methods(getattr(nodeplug.testing, argument)),
    }
    return kinds[kind]()


# --- what plugins may ask


def _rights() -> str:
    """Return who may ask for which operation, one row for each right."""
    operations: dict[str, list[str]] = {}
    for name, right in RIGHTS.items():
        operations.setdefault(right.text, []).append(f"`{name}`")
    rows = [f"| {', '.join(names)} | {text} |" for text, names in operations.items()]
    return "\n".join(["| operation of `host` | who may ask |", "|---|---|", *rows])


# --- what is read from outside


def _inputs() -> str:
    """Return the limits of what the daemon and the bundled plugins read, one row for each kind."""
    rows = [f"| {one.what} | {one.sender} | {_size(one)} | {_values(one)} | {_time(one)} |" for one in INPUTS]
    return "\n".join(["| what | who sends it | bytes | values of JSON | time |", "|---|---|---|---|---|", *rows])


def _size(one: Input) -> str:
    return show_quantity(one.size)


def _values(one: Input) -> str:
    if not one.values:
        return "no JSON"
    return f"{one.values:,}" + (", or one for each 16 bytes" if one.dense else "")


def _time(one: Input) -> str:
    return f"{one.seconds:g} s" if one.seconds else one.time


# --- keys of the configuration


def _keys(model: type[BaseModel]) -> str:
    rows = [f"| `{key}` | {kind} | {default} | {text} |" for key, kind, default, text in _rows(model.model_fields, "")]
    return "\n".join(["| key | type | default | meaning |", "|---|---|---|---|", *rows])


def _rows(fields: Mapping[str, FieldInfo], prefix: str) -> Iterator[tuple[str, str, str, str]]:
    for name, field in fields.items():
        text = (field.description or "").rstrip(".").replace("|", "\\|")
        yield prefix + name, _type(field.annotation, field), _default(field), f"{text[:1].upper()}{text[1:]}."
        for step, inner in _inner(field.annotation):
            yield from _rows(inner, f"{prefix}{name}{step}.")


def _inner(annotation: Any) -> Iterator[tuple[str, Mapping[str, FieldInfo]]]:
    """Return how a path goes into a table, or into the items of a list or table, and the keys that are there.

    Where items are of several kinds, first the keys that all kinds have, then those of each.
    """
    origin = get_origin(annotation)
    step = "" if origin in {None, Union, UnionType} else "[]" if origin in {tuple, list} else ".<name>"
    kinds = [one for one in _flat(annotation) if inspect.isclass(one) and issubclass(one, BaseModel)]
    if not kinds:
        return
    first, *others = (kind.model_fields for kind in kinds)
    shared = {name: field for name, field in first.items() if all(_same(field, other.get(name)) for other in others)}
    yield step, shared
    for kind in kinds if others else ():
        yield f"[{_told_by(kind)}]", {name: field for name, field in kind.model_fields.items() if name not in shared}


def _same(field: FieldInfo, other: FieldInfo | None) -> bool:
    return other is not None and (field.annotation, _default(field)) == (other.annotation, _default(other))


def _flat(annotation: Any) -> Iterator[Any]:
    arguments = [one for one in get_args(annotation) if one is not Ellipsis]
    if get_origin(annotation) is Annotated:
        arguments = arguments[:1]
    if not arguments:
        yield annotation
    for one in arguments:
        yield from _flat(one)


def _told_by(model: type[BaseModel]) -> str:
    """Return the key and value that tell one kind of item from the others."""
    key, field = next(
        (name, field) for name, field in model.model_fields.items() if get_origin(field.annotation) is Literal
    )
    return f"{key} = {get_args(field.annotation)[0]}"


def _type(annotation: Any, field: FieldInfo | None = None) -> str:
    metadata = list(field.metadata) if field is not None else []
    if get_origin(annotation) is Annotated:
        annotation, *more = get_args(annotation)
        metadata += more
    for item in metadata:
        word = _VALIDATED.get(getattr(getattr(item, "func", None), "__name__", ""))
        if word is not None:
            return word
    kind = _composed(annotation)
    return kind + _bounds(metadata, write_quantity if kind == "size" else str)


def _composed(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " or ".join(f"`{json.dumps(value)}`" for value in arguments)
    if origin in {Union, UnionType}:
        return " or ".join(dict.fromkeys(_type(one) for one in arguments if one is not NoneType))
    if origin in {tuple, list}:
        return f"list of {_plural(_type(arguments[0]))}"
    if arguments:
        return f"table of {_plural(_type(arguments[1]))}" if arguments[1] is not Any else "table"
    if inspect.isclass(annotation) and issubclass(annotation, PurePath):
        return "path"
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return "table"
    return _WORDS[annotation]


def _plural(word: str) -> str:
    return word if word in {"text", "any"} else f"{word}s"


def _bounds(metadata: list[Any], write: Callable[[Any], object]) -> str:
    least = next((item.ge for item in metadata if hasattr(item, "ge")), None)
    most = next((item.le for item in metadata if hasattr(item, "le")), None)
    if least is None and most is None:
        return ""
    return f", {write(least)} to {write(most)}" if most is not None else f", at least {write(least)}"


def _default(field: FieldInfo) -> str:
    value = field.get_default(call_default_factory=True)
    if field.is_required() or value is PydanticUndefined:
        return "required"
    if value is None:
        return "none"
    if isinstance(value, BaseModel):
        return "its defaults"
    if _type(field.annotation, field) == "size":
        return f'`"{show_quantity(value)}"`' if value else "`0`"
    if _type(field.annotation, field) == "duration":
        return f'`"{value:g}s"`'
    return f"`{json.dumps(value, default=str)}`"


# --- what Prometheus scrapes


def _metrics() -> str:
    """Describe every series of the daemon as a scrape shows it, after each thing that it counts has happened once."""
    metrics = Metrics("1")
    metrics.finished(Call("ADD", "cni:example"), OK)
    metrics.finished(Call("Register", "device:example.com/a"), OK)
    process = {"memory_bytes": 1 << 24, "cpu_seconds": 1.0}
    plugin = {"name": "example", "state": "running", "quarantined": False, "process": process, "restarts": 0}
    resource = {"resource": "example.com/a", "devices": 1, "healthy": 1, "allocated": 0, "registered": True}
    extender = {"listens": True, "connections": 1, "certificate_expires": 2e9}
    cluster = {"requests": 1, "refused": 0, "waiting": 0}
    pool = {"devices": 1, "unhealthy": 0}
    driver = {"driver": "example.nodeplug.io", "registered": True, "pools": [pool], "claims": []}
    known = {"plugins": [plugin], "resources": [resource], "extender": extender, "cluster": cluster, "dra": [driver]}
    metrics.sample({"calls": [], "spool": 0, "stranded": [], **known})
    metrics.reload("applied")
    rows = ["| series | type | labels | meaning |", "|---|---|---|---|"]
    for family in text_string_to_metric_families(generate_latest(metrics.registry).decode()):
        if family.name.startswith("process_"):
            continue
        if not family.samples:
            raise RuntimeError(f"{family.name} has no sample: let what it counts happen once, above")
        names = ", ".join(dict.fromkeys(f"`{sample.name}`" for sample in family.samples))
        labels = ", ".join(f"`{label}`" for label in family.samples[0].labels if label != "le")
        rows.append(f"| {names} | {family.type} | {labels} | {family.documentation} |")
    return "\n".join(rows)


# --- errors and hooks


def _errors() -> str:
    rows = ["| raise | CNI code | gRPC status | FlexVolume status | HTTP status | when |", "|---|---|---|---|---|---|"]
    for error, wire in WIRES.items():
        code = "the delegate's" if error is DelegateFailed else str(wire.cni)
        when = " ".join(str(inspect.getdoc(error)).split("\n\n")[0].split())
        rows.append(f"| `{error.__name__}` | {code} | `{wire.grpc}` | {wire.flex} | {wire.http} | {when} |")
    return "\n".join(rows)


def _hook(name: str) -> str:
    answer = ANSWERS[name]
    words = " or ".join("nothing" if one is NoneType else f"`{one.__name__}`" for one in answer.types)
    items = f" of `{answer.items.__name__}`" if answer.items is not None else ""
    words = words.replace("`Sequence`", f"`Sequence`{items}")
    # Names are read while plugins are loaded, before any thread of theirs.
    limit = f"Deadline: {Slot('').deadline(name):g} s{', import and constructor included' if name == 'claims' else ''}."
    return f"Returns {words}. {limit}"


def _before() -> str:
    names = [(f"`{name}`", said) for name, said in before.NAMES.items()]
    arguments = [(f"`{hook}(self, {argument})`", said) for (hook, argument), said in before.ARGUMENTS.items()]
    hooks = [(f"`{hook}`", said) for hook, said in before.HOOKS.items()]
    rows = [f"| {old} | {new} |" for old, new in [*_OTHERS.items(), *hooks, *arguments, *names]]
    return "\n".join(["| before | since version 1 |", "|---|---|", *rows])


# --- the kit for authors


def _rules_of(style: str) -> str:
    rows = ["| rule | what is expected | who demands it | applies to plugins with |", "|---|---|---|---|"]
    for rule in RULES.values():
        if rule.style == style:
            hooks = ", ".join(f"`{hook}`" for hook in rule.hooks)
            where = hooks if rule.isolation == ISOLATIONS else "a process of their own"
            rows.append(f"| `{rule.name}` | {rule.expected} | {rule.source} | {where} |")
    return "\n".join(rows)


def _fixtures() -> str:
    module = ast.parse(inspect.getsource(pytest_nodeplug))
    rows = ["| fixture | what it is | needs |", "|---|---|---|"]
    for node in module.body:
        if isinstance(node, ast.FunctionDef) and node.decorator_list and not node.name.startswith("_"):
            what = (ast.get_docstring(node) or "").partition("\n")[0]
            root = "root" if any(argument.arg == "_namespaces" for argument in node.args.args) else ""
            rows.append(f"| `{node.name}` | {what} | {root} |")
    return "\n".join(rows)


def _methods(cls: type[Any]) -> str:
    rows = [f"| `{cls.__name__}` | what it does |", "|---|---|"]
    for name, member in vars(cls).items():
        if name.startswith("_") or not inspect.isfunction(member):
            continue
        parameters = list(inspect.signature(member).parameters.values())[1:]
        bare = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in parameters])
        what = (inspect.getdoc(member) or "").partition("\n")[0]
        rows.append(f"| `{name}{bare}` | {what} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE)
