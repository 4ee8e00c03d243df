"""The rights that docs/networks.md lists are what the source of the room asks for, and no more."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import yaml
from tests.meta.test_provisioner_rights import VERBS, Right, named

import nodeplug.networks
from nodeplug.kubeapi.resources import NETWORKS, Resource

ROOT = Path(__file__).parents[2]
ROOM = Path(next(iter(nodeplug.networks.__path__)))


def asked_in(path: Path) -> Iterator[Right]:
    """Group, resource and verb of each request in a module; `_ask` is what the door calls for one object."""
    module = importlib.import_module(f"nodeplug.networks.{path.stem}")
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func).rpartition(".")[2]
        given = [one.value for one in node.keywords if one.arg == "part"]
        part = next((one.value for one in given if isinstance(one, ast.Constant)), "")
        for resource in [found for one in node.args if isinstance(found := named(module, one), Resource)]:
            what = "/".join(filter(None, (resource.plural, str(part))))
            verbs = ("list", "watch") if called == "Followed" else (VERBS[called.replace("_ask", "get")],)
            yield from ((resource.group, what, verb) for verb in verbs)


def documents() -> list[dict[str, object]]:
    blocks = (ROOT / "docs" / "networks.md").read_text().split("```yaml\n")[1:]
    return [yaml.safe_load(block.partition("```")[0]) for block in blocks]


def given() -> set[Right]:
    """What the role on the page allows."""
    (role,) = [one for one in documents() if one["kind"] == "ClusterRole"]
    rules: list[dict[str, list[str]]] = role["rules"]  # type: ignore[assignment]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_are_needed() -> None:
    asked = {right for path in ROOM.glob("*.py") for right in asked_in(path)}
    assert given() == asked


def test_the_definition_is_of_the_resource_that_is_asked_for() -> None:
    crd = yaml.safe_load((ROOT / "deploy" / "crds" / "networks.nodeplug.io.yaml").read_text())
    (version,) = crd["spec"]["versions"]
    found = (crd["spec"]["group"], version["name"], crd["spec"]["names"]["plural"], crd["spec"]["names"]["kind"])
    assert found == (NETWORKS.group, NETWORKS.version, NETWORKS.plural, NETWORKS.kind)
    assert crd["metadata"]["name"] == f"{NETWORKS.plural}.{NETWORKS.group}"
