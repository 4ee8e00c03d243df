"""The rights that `nodeplug cluster manifests` gives to a node are what its source asks for, and no more."""

import ast
import importlib
from pathlib import Path

import nodeplug.cluster
from nodeplug.cluster.manifests import manifests
from nodeplug.config import ClusterSection
from nodeplug.kubeapi.resources import CONFIG_MAPS, PODS, REPORTED_EVENTS, Resource

CLUSTER = Path(next(iter(nodeplug.cluster.__path__)))
VERBS = {"get": "get", "create": "create", "patch": "patch", "apply": "patch"}
"""Methods of `Requests`, and what roles call them."""
Right = tuple[str, str, str]


def asked() -> set[Right]:
    """Group, resource and verb of each request in the source; what is withdrawn is so by an administrator."""
    found: set[Right] = set()
    for path in CLUSTER.glob("*.py"):
        module = importlib.import_module(f"nodeplug.cluster.{path.stem}")
        for node in ast.walk(ast.parse(path.read_text())):
            called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
            if not isinstance(node, ast.Call) or called not in {f"requests.{one}" for one in VERBS}:
                continue
            resource = getattr(module, getattr(node.args[0], "id", ""), None)
            assert isinstance(resource, Resource), ast.unparse(node)
            verb = VERBS[called.partition(".")[2]]
            found.add((resource.group, resource.plural, verb))
            if "part" in {one.arg for one in node.keywords}:
                found.add((resource.group, f"{resource.plural}/status", verb))
    return found | {("", "configmaps", "create")}  # an apply may create it


def given(*publish: str) -> set[Right]:
    made = [one.object for one in manifests("n", publish)]
    rules = [rule for one in made for rule in one.get("rules", ())]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_rights_are_those_that_are_needed() -> None:
    assert given(*ClusterSection().publish) == asked()


def test_who_publishes_less_has_fewer_rights() -> None:
    few = given("labels", "conditions")
    plurals = {resource for _, resource, _ in few}
    assert plurals == {"nodes", "nodes/status"}
    assert ("", PODS.plural, "patch") not in given("labels", "events")
    assert (REPORTED_EVENTS.group, "events", "create") in given("labels", "events")
    assert CONFIG_MAPS.plural in {resource for _, resource, _ in given("config-maps")}
