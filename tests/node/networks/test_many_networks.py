"""Ten thousand objects `Network` for one node: pods are attached and detached meanwhile, and all are told of."""

import sys
import time

import pytest
from tests.node.networks.conftest import Pods
from tests.node.networks.test_network_objects import plugins, reason

from nodeplug.testing import Sandbox

pytestmark = [pytest.mark.node, pytest.mark.soak]
MANY = 10_000
PATIENCE = 3600.0


def test_pods_are_attached_while_a_node_takes_ten_thousand_networks(pods: Pods, pod: Sandbox) -> None:
    begun = time.monotonic()
    for number in range(MANY):
        pods.api.network(f"n{number}", plugins=plugins(f"n{number}", f"10.{number >> 8}.{number & 255}.0/24"))
    conflists, longest, lives = pods.node.paths.state / "networks" / "conflists", 0.0, 0
    filed = 0.0
    pods.api.pod("web", {})

    def live() -> None:
        nonlocal longest, lives, filed
        started = time.monotonic()
        pods.attach("web", pod)
        pods.detach("web", pod)
        longest, lives = max(longest, time.monotonic() - started), lives + 1
        if not filed and len(list(conflists.glob("*.conflist"))) == MANY:
            filed = time.monotonic() - begun

    waiting = [f"n{number}" for number in range(MANY)]
    while waiting:
        live()
        while waiting and reason(pods, waiting[-1]) == "Ready":
            waiting.pop()
        assert time.monotonic() - begun < PATIENCE, f"{len(waiting)} of {MANY} are not told of"
    sys.stdout.write(
        f"files after {filed:.0f} s, the last status after {time.monotonic() - begun:.0f} s, "
        f"{lives} lives meanwhile, the longest {longest * 1000:.0f} ms\n"
    )
    pods.nothing_left(pod)
