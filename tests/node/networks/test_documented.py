"""The examples of docs/networks.md: its objects, its configuration of the runtime, its pod."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.node.networks.conftest import Pods

from nodeplug.testing import CniRuntime, Sandbox
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
PAGE = (Path(__file__).parents[3] / "docs" / "networks.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, flags=re.DOTALL)


def documents() -> dict[str, Any]:
    return {one["kind"]: one for one in map(yaml.safe_load, blocks("yaml"))}


def test_the_pod_of_the_page_gets_the_networks_of_the_page(pods: Pods, pod: Sandbox) -> None:
    found = documents()
    definition, wanted, network = found["NetworkAttachmentDefinition"], found["Pod"], found["Network"]
    pods.api.definition(definition["metadata"]["name"], definition["spec"]["config"])
    pods.api.network(network["metadata"]["name"], **network["spec"])
    pods.api.definition("backup", "")
    until(lambda: pods.api.of_network("backup").get("ready"))
    annotation = json.loads(wanted["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"])
    pods.api.pod("web", {"k8s.v1.cni.cncf.io/networks": json.dumps([*annotation, {"name": "backup"}])})
    pods.runtime = CniRuntime(json.loads(blocks("json")[0]), [pods.node.paths.cni_bin], cache_dir=pods.folder / "cache")
    pods.attach("web", pod)
    assert pods.links(pod) == {"eth0", "st0", "net2"}
    until(lambda: pods.api.status_of("web"))
    status = {one["interface"]: one for one in pods.api.status_of("web") or []}
    assert status["st0"]["ips"] == ["10.97.0.20"]
    pods.detach("web", pod)
    pods.nothing_left(pod)
