"""What helm renders from the chart, and which values it refuses."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from tests.real.chart import CHART, DEPLOY, documented

from nodeplug.config import Supervisor
from nodeplug.fields import parse_quantity
from nodeplug.hosting.supervision import AT_ONCE
from nodeplug_volumes import merging

pytestmark = pytest.mark.real
_RENDER = """
import sys
sys.path.insert(0, sys.argv[1])
import generate
sys.stdout.write(generate.rendered(sys.argv[2]))
"""


def test_the_page_installs_what_the_plain_manifests_are_rendered_with() -> None:
    assert documented()[0] == yaml.safe_load((DEPLOY / "manifests" / "values.yaml").read_text())


def test_the_plain_manifests_are_what_the_chart_renders(consumer: Callable[[str], Path]) -> None:
    rendered = subprocess.run(
        [sys.executable, "-c", _RENDER, str(DEPLOY), str(consumer("helm") / "helm")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert rendered == (DEPLOY / "manifests" / "nodeplug.yaml").read_text()


def test_helm_takes_the_values_for_cards(consumer: Callable[[str], Path], tmp_path: Path) -> None:
    values = tmp_path / "cards.yaml"
    values.write_text(yaml.safe_dump(documented()[3]))
    command = [str(consumer("helm") / "helm"), "template", "nodeplug", str(CHART), "--values", str(values)]
    made = yaml.safe_load_all(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    (pods,) = [one["spec"]["template"]["spec"] for one in made if one["kind"] == "DaemonSet"]
    inside = {one["mountPath"] for one in pods["containers"][0]["volumeMounts"]}
    assert {"/node/root", "/var/log/containers", "/var/log/pods", "/var/run/cdi"} <= inside


def test_the_daemon_ends_itself_before_its_limit_does(consumer: Callable[[str], Path]) -> None:
    command = [str(consumer("helm") / "helm"), "template", "nodeplug", str(CHART)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (pods,) = [one["spec"]["template"]["spec"] for one in yaml.safe_load_all(done.stdout) if one["kind"] == "DaemonSet"]
    limit = parse_quantity(pods["containers"][0]["resources"]["limits"]["memory"])
    assert limit > AT_ONCE * Supervisor().memory + merging.MEMORY


def test_the_extender_ends_itself_before_its_limit_does_and_the_scheduler_beside_it_has_none(
    consumer: Callable[[str], Path],
) -> None:
    command = [str(consumer("helm") / "helm"), "template", "nodeplug", str(CHART), "--set"]
    settings = "cluster.enabled=true,extender.enabled=true,extender.scheduler.image=scheduler"
    done = subprocess.run([*command, settings], capture_output=True, text=True, check=True)
    (pods,) = [
        one["spec"]["template"]["spec"] for one in yaml.safe_load_all(done.stdout) if one["kind"] == "Deployment"
    ]
    extender, scheduler = pods["containers"]
    assert parse_quantity(extender["resources"]["limits"]["memory"]) > AT_ONCE * Supervisor().memory
    assert "limits" not in scheduler["resources"]


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("plugin.net=x", "plugin"),
        ("listen.port=99999", "/listen/port"),
        ("csi.drivers={nosuch.driver}", "nosuch.driver is no bundled driver"),
        ("provisioner.enabled=true", "needs a driver in csi.drivers"),
        ("kubeletDir=relative", "/kubeletDir"),
        ("dra.taint=Sometimes", "/dra/taint"),
        ("dra.classes[0].resource=example.com/a,dra.classes[0].section=a", "dra.classes needs dra.enabled"),
    ],
)
def test_helm_refuses_values_that_would_do_nothing_or_harm(
    consumer: Callable[[str], Path], setting: str, told: str
) -> None:
    done = subprocess.run(
        [consumer("helm") / "helm", "template", "nodeplug", str(CHART), "--set", setting],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert told in done.stderr
