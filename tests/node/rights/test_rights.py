"""What a plugin may ask of the daemon, asked by plugins that may not, in a process and in a thread of a real daemon."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.node.acted_api import ActedApi
from tests.node.rights.hostile_plugins import ASKS

from nodeplug.contract.journal import Journal
from nodeplug.exec.client import ask
from nodeplug.hosting.rights import RIGHTS
from nodeplug.testing import ScratchNode, forked
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged
Start = Callable[..., ScratchNode]
CLUSTER = """
[networks]
kubeconfig = "{root}/kubeconfig"
[extender]
listen = "127.0.0.1:0"
follow = true
kubeconfig = "{root}/kubeconfig"
"""


@pytest.fixture
def api() -> Iterator[ActedApi]:
    with ActedApi() as made:
        made.pod("other", {}, node="node-2", uid="uid-other")
        yield made


@pytest.fixture
def start(short_path: Path, tmp_path: Path, api: ActedApi) -> Iterator[Start]:
    made: list[ScratchNode] = []
    env = {"PYTHONPATH": os.pathsep.join([*forked.search_path(), str(Path(__file__).parent)])}

    def start(plugin: str, isolation: str, more: str = "") -> ScratchNode:
        text = f'[plugins.hostile]\nuses = "hostile_plugins:{plugin}"\nisolation = "{isolation}"\n'
        config = f'[plugins.hostile.config]\nprogram = "{tmp_path}"\n'
        text = text + config + more + CLUSTER.format(root=short_path)
        node = ScratchNode(short_path, text, env=env, fork=True, supervisor='listen = ""\nnode_name = "node-1"\n')
        made.append(node)
        (short_path / "kubeconfig").write_text(api.kubeconfig)
        node.start()
        until(lambda: {one["name"]: one["state"] for one in node.status()["plugins"]}.get("hostile") == "running")
        return node

    yield start
    for node in made:
        node.stop()


def told(node: ScratchNode) -> dict[str, str]:
    answers: dict[str, str] = ask(node.paths.exec_socket, "inspect", "hostile")["hostile"]
    return answers


def refusals(node: ScratchNode, *granted: str) -> None:
    answers = told(node)
    assert set(answers) == {name for name, right in RIGHTS.items() if right.check is not None}
    answered = {name: text for name, text in answers.items() if "only sections that do may ask for this" not in text}
    assert set(answered) == set(granted), answered


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_a_device_plugin_is_refused_what_its_style_does_not_need(start: Start, isolation: str) -> None:
    refusals(start("Device", isolation), "holders")


def test_an_extender_is_refused_what_its_style_does_not_need(start: Start) -> None:
    node = start("Extender", "process")
    refusals(node, "scheduling.node", "scheduling.bound", "scheduling.pod", "scheduling.bind")
    assert "no such extender_bind is being served" in told(node)["scheduling.bind"]


def test_a_network_plugin_is_refused_what_its_style_does_not_need(start: Start) -> None:
    names = [name for name in ASKS if name.startswith("networks.")]
    node = start("Network", "process")
    refusals(node, "attachments", "delegate", *names)
    assert "is not serving a CNI request" in told(node)["delegate"]


@pytest.mark.parametrize("isolation", ["process", "thread"])
@pytest.mark.parametrize("plugin", ["Device", "Network"])
def test_a_plugin_cannot_have_a_program_of_its_own_executed(
    start: Start, tmp_path: Path, plugin: str, isolation: str
) -> None:
    program = tmp_path / "pwn"
    program.write_text(f"#!/bin/sh\nid -u > {tmp_path}/executed\n")
    program.chmod(0o755)
    node = start(plugin, isolation)
    assert told(node)["delegate"].startswith(("NotReady", "InvalidRequest"))
    assert not (tmp_path / "executed").exists()


def test_an_exclusive_claim_gives_no_access_to_what_other_plugins_have_left(start: Start) -> None:
    left = '[plugins.nodeplug-tmpfs]\nuses = "tmpfs"\n'
    node = start("Former", "process", left)
    journal = Journal(node.paths.journal / "nodeplug-tmpfs")
    journal.write("a volume", phase="mounted")
    node.config_path.write_text(node.config_path.read_text().replace(left, ""))
    until(lambda: [one["name"] for one in node.status()["plugins"]] == ["hostile"])
    assert told(node)["former_sections"] == "it was answered: []"
    assert [entry.key for entry in journal.entries()] == ["a volume"]


def test_the_status_of_a_pod_of_another_node_is_not_written(start: Start, api: ActedApi) -> None:
    node = start("Network", "process")
    assert told(node)["networks.report"] == "it was answered: None"
    until(lambda: "the network status of pod default/other is not written: it is not on node node-1" in node.log)
    assert api.status_of("other") is None


def test_a_refusal_is_logged_once(start: Start) -> None:
    node = start("Device", "process")
    for _ in range(3):
        told(node)
    until(lambda: "plugin hostile was refused scheduling.bind" in node.log)
    assert node.log.count("plugin hostile was refused delegate") == 1
