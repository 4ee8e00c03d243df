"""The rights that `nodeplug csi manifests` gives to the daemon are what its source asks for, and no more."""

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import nodeplug.csi
import nodeplug.provisioner
from nodeplug import VolumeClaim
from nodeplug.csi.manifests import manifests
from nodeplug.csi.objects import Driver
from nodeplug.kubeapi.resources import Resource

PROVISIONER, CSI = (Path(next(iter(room.__path__))) for room in (nodeplug.provisioner, nodeplug.csi))
VERBS = {"get": "get", "list": "list", "create": "create", "replace": "update", "patch": "patch", "delete": "delete"}
"""Methods of the client, and what roles call them."""
Right = tuple[str, str, str]


def asked() -> set[Right]:
    """Group, resource and verb of each request in the source; a lost node is forgotten by an administrator."""
    sources = [CSI / "csi_node.py", *(path for path in PROVISIONER.glob("*.py") if path.stem != "lost_node")]
    return {right for path in sources for right in asked_in(path)}


def asked_in(path: Path) -> Iterator[Right]:
    module = importlib.import_module(f"nodeplug.{path.parent.name}.{path.stem}")
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        resources = [found for one in node.args if isinstance(found := named(module, one), Resource)]
        parts = [one.value for one in node.args if isinstance(one, ast.Constant) and one.value == "status"]
        for resource in resources:
            what = resource.plural + (f"/{parts[0]}" if parts else "")
            if called == "Followed":
                yield from ((resource.group, what, verb) for verb in ("list", "watch"))
            else:
                yield resource.group, what, VERBS[called.rpartition("client.")[2]]


def named(module: object, node: ast.expr) -> object:
    return getattr(module, node.id, None) if isinstance(node, ast.Name) else None


def given() -> set[Right]:
    """What the printed roles allow."""
    driver = Driver("s.a", VolumeClaim("a/s"), frozenset({"volume_create"}))
    made = [one.object for one in manifests([driver], Path("/"), "n", {}, sidecars=False, snapshots=False)]
    rules = [rule for one in made for rule in one.get("rules", ())]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_are_needed() -> None:
    assert given() == asked()


def test_the_source_asks_for_something() -> None:
    assert ("", "persistentvolumes", "delete") in asked()
    assert ("", "persistentvolumeclaims/status", "patch") in asked()
    assert ("storage.k8s.io", "csinodes", "get") in asked()
