"""What a network of one tenant may not do to the node and to others."""

import json
import os
from typing import Any

import pytest
from tests.node.networks.conftest import Pods, bridge

from nodeplug.testing import CniError, Sandbox
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
NETWORKS = "k8s.v1.cni.cncf.io/networks"


def with_path(key: str, path: str) -> dict[str, Any]:
    found = bridge("tenant", "10.81.0.0/24")
    return {**found, "ipam": {**found["ipam"], key: path}}


@pytest.mark.parametrize(
    ("key", "path"), [("resolvConf", "/dev/zero"), ("resolvConf", "/etc/shadow"), ("dataDir", "/etc/cron.d")]
)
def test_a_path_that_the_node_does_not_allow_is_refused_and_others_are_attached(
    pods: Pods, pod: Sandbox, key: str, path: str
) -> None:
    pods.api.definition("tenant", with_path(key, path))
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.api.pod("other", {})
    with pytest.raises(CniError, match=f"NetworkAttachmentDefinition default/tenant: ipam.{key} is '{path}'") as caught:
        pods.attach("web", pod)
    assert caught.value.code == 7
    pods.attach("other", pod)
    pods.detach("other", pod)
    pods.nothing_left(pod)


def test_a_path_that_the_administrator_allows_is_used(pods: Pods, pod: Sandbox) -> None:
    resolv = pods.folder / "resolv.conf"
    resolv.write_text("nameserver 192.0.2.1\n")
    pods.node.config_path.write_text(
        pods.node.config_path.read_text().replace("[networks]\n", f'[networks]\npaths = ["{pods.folder}"]\n')
    )
    pods.node.stop()
    pods.node.start()
    pods.api.definition("tenant", with_path("resolvConf", str(resolv)))
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.attach("web", pod)
    until(lambda: pods.api.status_of("web"))
    (_, tenant) = pods.api.status_of("web") or []
    assert tenant["dns"] == {"nameservers": ["192.0.2.1"]}
    pods.detach("web", pod)


def test_an_attachment_of_before_is_detached_when_its_path_is_not_allowed_any_more(pods: Pods, pod: Sandbox) -> None:
    text = pods.node.config_path.read_text()
    pods.node.config_path.write_text(text.replace("[networks]\n", '[networks]\npaths = ["/"]\n'))
    pods.node.stop()
    pods.node.start()
    pods.api.definition("tenant", with_path("dataDir", str(pods.folder / "pools")))
    pods.api.pod("web", {NETWORKS: "tenant"})
    pods.attach("web", pod)
    pods.node.config_path.write_text(text)
    pods.node.stop()
    pods.node.start()
    pods.detach("web", pod)
    pods.nothing_left(pod)
    assert [path.name for path in (pods.folder / "pools" / "tenant").glob("10.*")] == []


@pytest.mark.parametrize("as_json", [False, True])
def test_a_command_lists_what_would_be_refused(pods: Pods, as_json: bool) -> None:
    pods.api.definition("good", with_path("resolvConf", "/etc/resolv.conf"))
    pods.api.definition("bad", with_path("resolvConf", "/etc/shadow"))
    pods.api.definition("text", "{")
    pods.api.network("blue", plugins=[{"type": "nodeplug-bridge", "ipam": {"type": "host-local", "dataDir": "/root"}}])
    done = pods.node.run("cluster check-networks", *["--json"][: int(as_json)])
    assert done.returncode == 1
    if as_json:
        found = json.loads(done.stdout)["refused"]
        assert [(one["kind"], one["name"]) for one in found] == [
            ("Network", "blue"),
            ("NetworkAttachmentDefinition", "default/bad"),
        ]
        return
    first, second = done.stdout.splitlines()
    assert first.startswith("Network blue: ipam.dataDir is '/root', and networks of the cluster may name only")
    assert second.startswith("NetworkAttachmentDefinition default/bad: ipam.resolvConf is '/etc/shadow'")


def test_a_network_object_with_such_a_path_says_so_in_its_status(pods: Pods) -> None:
    pods.api.network("blue", plugins=[{"type": "nodeplug-bridge", "ipam": {"type": "host-local", "dataDir": "/root"}}])
    until(lambda: pods.api.of_network("blue").get("reason") == "PathNotAllowed")
    assert not (pods.node.paths.state / "networks" / "conflists" / "blue.conflist").exists()


def test_a_pipe_among_the_configurations_of_the_node_hangs_nobody(pods: Pods, pod: Sandbox) -> None:
    os.mkfifo(pods.node.root / "etc" / "cni" / "net.d" / "10-pipe.conflist")
    pods.api.definition("own", "")
    pods.api.pod("web", {NETWORKS: "own"})
    with pytest.raises(CniError, match="the node has no configuration 'own'"):
        pods.attach("web", pod)
