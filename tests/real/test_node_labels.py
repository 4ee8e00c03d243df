"""Sections that choose nodes by label, on a real API server."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.real.consumers import ControlPlane

from nodeplug.testing import ScratchNode, folders
from nodeplug.testing.waiting import until

NODE = "labelled"
SECTIONS = """
[plugins.tmpfs]
[plugins.static]
node_selector = { card = "t4" }
[plugins.other]
uses = "host-local"
node_selector = { card = "a100" }
"""


@pytest.fixture
def make_node(cluster: ControlPlane) -> Iterator[Callable[[str], ScratchNode]]:
    """A node whose daemon knows the cluster; it is registered without labels."""
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(cluster.kubeconfig)
    made: list[ScratchNode] = []

    def make(sections: str) -> ScratchNode:
        supervisor = f'listen = ""\nnode_name = "{NODE}"\nkubeconfig = "{kubeconfig}"'
        made.append(ScratchNode(folder / "n", sections, supervisor=supervisor, beside=cluster.node.pid, fork=True))
        made[-1].start()
        return made[-1]

    cluster.call("POST", "/api/v1/nodes", {"metadata": {"name": NODE}})
    yield make
    for one in made:
        one.stop()
    cluster.call("DELETE", f"/api/v1/nodes/{NODE}")
    folders.remove(folder)


def label(cluster: ControlPlane, card: str | None) -> None:
    patch = {"metadata": {"labels": {"card": card}}}
    cluster.call("PATCH", f"/api/v1/nodes/{NODE}", patch, content="application/merge-patch+json")


def running(node: ScratchNode) -> set[str]:
    return {plugin["name"] for plugin in node.status()["plugins"] if plugin["state"] == "running"}


def test_sections_come_and_go_with_the_labels_of_the_node(
    cluster: ControlPlane, make_node: Callable[[str], ScratchNode]
) -> None:
    node = make_node(SECTIONS)
    assert running(node) == {"tmpfs"}
    label(cluster, "t4")
    until(lambda: running(node) == {"tmpfs", "static"})
    label(cluster, "a100")
    until(lambda: running(node) == {"tmpfs", "other"})
    label(cluster, None)
    until(lambda: running(node) == {"tmpfs"})
    assert node.status()["ready"]


def test_a_start_without_an_api_server_has_the_labels_that_were_known_last(
    cluster: ControlPlane, make_node: Callable[[str], ScratchNode]
) -> None:
    node = make_node(SECTIONS)
    label(cluster, "t4")
    until(lambda: running(node) == {"tmpfs", "static"})
    node.kill()
    cluster.kill_api()
    try:
        node.start()
        assert running(node) == {"tmpfs", "static"}
        assert node.status()["ready"]
    finally:
        cluster.start_api()


def test_labels_that_were_never_known_are_a_reason_not_to_be_ready(
    cluster: ControlPlane, make_node: Callable[[str], ScratchNode]
) -> None:
    cluster.kill_api()
    try:
        node = make_node(SECTIONS)
        until(lambda: "labels of the node" in node.status()["reasons"])
        assert "wait for the labels of this node" in node.status()["reasons"]["labels of the node"]
        assert running(node) == {"tmpfs"}
    finally:
        cluster.start_api()
    until(lambda: node.status()["ready"])


def test_a_mistake_in_a_section_for_other_nodes_is_told_before_it_is_applied(tmp_path: Path) -> None:
    scratch = ScratchNode(tmp_path, SECTIONS.replace('"host-local"', '"host-local"\nconfig = { nonsense = 1 }'))
    done = scratch.run("check-config", "--node-labels", "card=t4")
    assert done.returncode == 1
    assert "plugins.other.config.nonsense" in done.stderr


def test_a_check_says_which_sections_a_node_with_labels_has(tmp_path: Path) -> None:
    scratch = ScratchNode(tmp_path, SECTIONS)
    done = scratch.run("check-config", "--node-labels", "card=a100", "--node-name", "gpu-1")
    assert done.returncode == 0
    assert "not for this node: static (node_selector asks for card=t4, and this node has card=a100)" in done.stdout
