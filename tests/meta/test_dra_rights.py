"""The rights that `nodeplug dra manifests` gives to a node are what the source of the room asks for, and no more."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from tests.meta.test_provisioner_rights import VERBS, Right, named

import nodeplug.dra
from nodeplug.dra.manifests import rules
from nodeplug.kubeapi.resources import Resource

ROOM = Path(next(iter(nodeplug.dra.__path__)))


def asked_in(path: Path) -> Iterator[Right]:
    """Group, resource and verb of each request in a module."""
    module = importlib.import_module(f"nodeplug.dra.{path.stem}")
    for node in ast.walk(ast.parse(path.read_text())):
        called = ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or called not in {"Followed", *VERBS}:
            continue
        for resource in [found for one in node.args if isinstance(found := named(module, one), Resource)]:
            verbs = ("list", "watch") if called == "Followed" else (VERBS[called],)
            yield from ((resource.group, resource.plural, verb) for verb in verbs)


def test_the_rights_are_those_that_are_needed() -> None:
    asked = {right for path in ROOM.glob("*.py") if path.stem != "__init__" for right in asked_in(path)}
    given = {
        (group, resource, verb)
        for rule in rules()
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    assert given == asked
