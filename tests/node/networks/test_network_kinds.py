"""A cluster that has one kind of networks and not the other: normal, told once, and noticed when the kind comes."""

import pytest
from tests.node.networks.conftest import Pods, bridge
from tests.node.networks.test_network_objects import plugins, reason

from nodeplug.testing import CniError, Sandbox
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
KEY = "k8s.v1.cni.cncf.io/networks"
DEFINITIONS = "network-attachment-definitions"


def told(pods: Pods, about: str) -> str:
    """Return what the status says of something."""
    return next((str(row["problem"]) for row in pods.node.status()["networks"] if row["about"] == about), "")


def lines(pods: Pods, kind: str, since: int) -> list[str]:
    """Return the levels of the log's lines about a kind."""
    return [line.split()[1] for line in pods.node.log[since:].splitlines() if kind in line]


def test_objects_network_need_no_definitions(pods: Pods, pod: Sandbox) -> None:
    pods.node.kill()
    pods.api.network("blue", plugins=plugins("blue", "10.81.0.0/24"))
    since = len(pods.node.log)
    with pods.api.failing("absent", lambda _, where: where.resource == DEFINITIONS):
        pods.node.start()
        until(lambda: told(pods, "definitions"))
        assert "does not have the kind NetworkAttachmentDefinition (k8s.cni.cncf.io/v1)" in told(pods, "definitions")
        until(lambda: reason(pods, "blue") == "Ready")
        with pytest.raises(CniError, match="there is no NetworkAttachmentDefinition default/blue"):
            pods.attach("web", pod, told={KEY: "blue"})
        until(lambda: sum(DEFINITIONS in one for one in pods.api.asked) > 3)
        assert lines(pods, "the kind NetworkAttachmentDefinition ", since) == ["INFO"]
        assert "WARNING nodeplug.kubeapi" not in pods.node.log[since:]
    pods.api.definition("blue", "")
    pods.knows("blue")
    assert told(pods, "definitions") == ""
    pods.attach("web", pod, told={KEY: "blue"})


def test_definitions_need_no_objects_network(pods: Pods, pod: Sandbox) -> None:
    pods.api.network("old", plugins=plugins("old", "10.83.0.0/24"))
    until(lambda: reason(pods, "old") == "Ready")
    pods.node.kill()
    pods.api.remove("networks", "old")
    since = len(pods.node.log)
    with pods.api.failing("absent", lambda _, where: where.resource == "networks"):
        pods.api.definition("blue", bridge("blue", "10.81.0.0/24"))
        pods.node.start()
        until(lambda: "does not have the kind Network (nodeplug.io/v1alpha1)" in told(pods, "networks"))
        pods.attach("web", pod, told={KEY: "blue"})
        # What the node still has of such objects is of no object now.
        until(lambda: not list((pods.node.paths.state / "networks" / "conflists").glob("*.conflist")))
        assert lines(pods, "the kind Network ", since) == ["INFO"]
        assert "WARNING nodeplug.kubeapi" not in pods.node.log[since:]
    pods.api.network("green", plugins=plugins("green", "10.82.0.0/24"))
    until(lambda: reason(pods, "green") == "Ready")
    assert told(pods, "networks") == ""
