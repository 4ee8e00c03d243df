"""A pod with several networks that ends while the daemon is away: the spool has its DEL, the record all it needs."""

import pytest
from tests.node.networks.conftest import Pods, bridge

from nodeplug.testing import Sandbox
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node


def test_a_pod_that_ends_while_the_daemon_is_away_leaves_nothing_afterwards(pods: Pods, pod: Sandbox) -> None:
    pods.api.definition("blue", bridge("blue", "10.81.0.0/24"))
    pods.api.pod("web", {"k8s.v1.cni.cncf.io/networks": "blue,blue"})
    pods.attach("web", pod)
    pods.node.kill()
    pods.api.remove("network-attachment-definitions", "blue", "default")
    pods.detach("web", pod)
    assert len(pods.held()) == 3
    pods.node.start()
    until(lambda: (pods.held(), pods.records()) == (set(), []))
    assert pods.links(pod) == set()
