"""deploy/chart: what it repeats of nodeplug is what nodeplug says, and each key of its values does something."""

import importlib.util
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
CHART = DEPLOY / "chart"
FREE = {"plugins", "list", "labels", "nodeSelector", "affinity", "resources", "podAnnotations", "podLabels"}
"""Tables whose keys are the user's."""


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    found = importlib.util.spec_from_file_location("deploy_generate", DEPLOY / "generate.py")
    assert found is not None
    assert found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def values() -> dict[str, Any]:
    return dict(yaml.safe_load((CHART / "values.yaml").read_text()))


def keys(table: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the paths of all keys but the user's own."""
    for name, value in table.items():
        yield f"{prefix}{name}"
        if isinstance(value, dict) and name not in FREE:
            yield from keys(value, f"{prefix}{name}.")


def declared(schema: dict[str, Any], prefix: str = "") -> Iterator[str]:
    for name, one in schema.get("properties", {}).items():
        yield f"{prefix}{name}"
        if name not in FREE:
            yield from declared(one, f"{prefix}{name}.")


def test_what_the_chart_knows_of_csi_is_what_nodeplug_prints(generator: ModuleType) -> None:
    assert json.loads((CHART / "files" / "csi.json").read_text()) == generator.csi_objects()


def test_what_the_chart_gives_nodes_that_publish_is_what_nodeplug_prints(generator: ModuleType) -> None:
    assert json.loads((CHART / "files" / "cluster.json").read_text()) == generator.cluster_objects()


@pytest.mark.whole
def test_what_the_chart_gives_those_that_serve_claims_is_what_nodeplug_prints(generator: ModuleType) -> None:
    assert json.loads((CHART / "files" / "dra.json").read_text()) == generator.dra_objects()


def test_what_the_chart_gives_the_extender_is_what_its_page_says(generator: ModuleType) -> None:
    assert json.loads((CHART / "files" / "extender.json").read_text()) == generator.rights("scheduler.md")


def test_what_the_chart_gives_for_networks_is_what_their_page_says(generator: ModuleType) -> None:
    assert json.loads((CHART / "files" / "networks.json").read_text()) == generator.rights("networks.md")
    name = "networks.nodeplug.io.yaml"
    assert (CHART / "crds" / name).read_bytes() == (DEPLOY / "crds" / name).read_bytes()


def test_the_schema_has_the_keys_of_the_values_and_no_others(values: dict[str, Any]) -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(declared(schema)) - {"global"} == {
        key for key in keys(values) if not key.startswith("updateStrategy.rollingUpdate")
    }
    assert schema["additionalProperties"] is False


def test_a_template_uses_each_key(values: dict[str, Any]) -> None:
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.([A-Za-z.]+)", text))
    below = {".".join(one.split(".")[:end]) for one in used for end in range(1, one.count(".") + 2)}
    inside = {key for key in keys(values) if any(key.startswith(f"{one}.") for one in used)}
    assert {*keys(values)} - below - inside == set()
    assert used - {*keys(values)} == set()


def test_the_chart_has_the_version_of_nodeplug() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    (version,) = re.findall(r'^version = "(.+)"$', (DEPLOY.parent / "pyproject.toml").read_text(), re.MULTILINE)
    assert (chart["version"], chart["appVersion"]) == (version, version)


def test_no_port_is_declared_and_so_two_pods_fit_on_a_node() -> None:
    assert "containerPort" not in (DEPLOY / "manifests" / "nodeplug.yaml").read_text()


def test_each_folder_of_the_node_is_at_its_own_path_in_the_container() -> None:
    objects = list(yaml.safe_load_all((DEPLOY / "manifests" / "nodeplug.yaml").read_text()))
    (spec,) = [one["spec"]["template"]["spec"] for one in objects if one["kind"] == "DaemonSet"]
    on_node = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    for container in (*spec["initContainers"], *spec["containers"]):
        inside = {one["name"]: one["mountPath"] for one in container["volumeMounts"]}
        assert {name: inside[name] for name in on_node} == on_node
