"""Objects as an administrator gets them: what each is for, and why its fields have their values.

Owns: the comments, YAML with them, and a List without.
Refuses: which objects there are.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

from nodeplug.kubeapi.resources import Object

_KEY: Final = re.compile(r"( *)([\w.-]+):")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One object, and what is to be known of it.

    Attributes:
        object: as JSON has it.
        about: why it is there.
        notes: why a field has its value, by its key; `spec.KEY` below `spec`.
    """

    object: Object
    about: str
    notes: Mapping[str, str] = field(default_factory=dict)


def named(version: str, kind: str, name: str, namespace: str = "") -> Object:
    """Return an object that has a name and no more."""
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata}


def as_yaml(made: Iterable[Manifest]) -> str:
    """Write objects with their comments."""
    return "---\n".join(_written(one) for one in made)


def _written(one: Manifest) -> str:
    lines = list(_comment(one.about, 0))
    parents: list[str] = []
    for line in yaml.safe_dump(one.object, sort_keys=False, width=1000).splitlines():
        found = _KEY.match(line)
        if found is not None and len(found[1]) <= 2:
            depth = len(found[1]) // 2
            parents[depth:] = [found[2]]
            lines += _comment(one.notes.get(".".join(parents), ""), len(found[1]))
        lines.append(line)
    return "\n".join(lines) + "\n"


def _comment(text: str, indent: int) -> Iterator[str]:
    words, line = text.split(), ""
    for word in words:
        if line and len(line) + len(word) > 110 - indent:
            yield f"{' ' * indent}# {line}"
            line = ""
        line = f"{line} {word}".strip()
    if line:
        yield f"{' ' * indent}# {line}"


def as_list(made: Iterable[Manifest]) -> Any:
    """Return one object that has them all, which `kubectl apply` takes in JSON."""
    return {"apiVersion": "v1", "kind": "List", "items": [one.object for one in made]}
