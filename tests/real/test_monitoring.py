"""The rules of alerts and the dashboard of the chart, in a real API server that knows Prometheus' operator."""

import json
import subprocess
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.real.consumers import ControlPlane

from nodeplug import PluginError
from nodeplug.testing.waiting import until

CHART = Path(__file__).parents[2] / "deploy" / "chart"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
RULES = "/apis/monitoring.coreos.com/v1/namespaces/default/prometheusrules"


@pytest.fixture(scope="module")
def rendered(consumer: Callable[[str], Path]) -> Mapping[str, dict[str, Any]]:
    """What the chart makes of both, by kind."""
    command = [str(consumer("helm") / "helm"), "template", "nodeplug", str(CHART), "--namespace", "default"]
    command += ["--show-only", "templates/monitoring.yaml"]
    command += ["--set", "prometheusRule.enabled=true,dashboard.enabled=true"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}


@pytest.fixture(scope="module")
def server(control: ControlPlane, consumer: Callable[[str], Path]) -> ControlPlane:
    """An API server with the object of the operator."""
    path = consumer("prometheus") / "published" / "monitoring.coreos.com_prometheusrules.yaml"
    control.call("POST", DEFINITIONS, yaml.safe_load(path.read_text()))

    def served() -> bool:
        try:
            control.call("GET", RULES)
        except PluginError:
            return False
        return True

    until(served)
    return control


def create(server: ControlPlane, rules: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = server.call("POST", f"{RULES}?fieldValidation=Strict&dryRun=All", rules)
    return made


def test_the_operators_object_takes_the_alerts_of_the_chart(
    server: ControlPlane, rendered: Mapping[str, dict[str, Any]]
) -> None:
    rules = rendered["PrometheusRule"]
    assert rules["spec"]["groups"]
    assert create(server, rules)["spec"] == rules["spec"]


def test_the_operators_object_refuses_an_alert_that_it_does_not_know(
    server: ControlPlane, rendered: Mapping[str, dict[str, Any]]
) -> None:
    rules = deepcopy(rendered["PrometheusRule"])
    rules["spec"]["groups"][0]["rules"][0]["for"] = "five minutes"
    with pytest.raises(PluginError, match="for"):
        create(server, rules)


def test_the_server_takes_the_dashboard_of_the_chart_as_grafanas_sidecar_reads_it(
    server: ControlPlane, rendered: Mapping[str, dict[str, Any]]
) -> None:
    made = server.call("POST", "/api/v1/namespaces/default/configmaps?dryRun=All", rendered["ConfigMap"])
    assert json.loads(made["data"]["nodeplug.json"]) == json.loads((CHART / "files" / "dashboard.json").read_text())
