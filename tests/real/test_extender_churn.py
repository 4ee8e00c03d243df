"""Thousands of pods come and go on hollow nodes with several cards, placed by a real kube-scheduler.

With the extender kubelets reject none; without it many. `NODEPLUG_CHURN` is how many
pods there shall be.
"""

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
from tests.real.consumers import ControlPlane
from tests.real.consumers.churn import Churn
from tests.real.consumers.hollow import Rejection, open_fleet

from nodeplug.testing import ScratchNode

pytestmark = pytest.mark.soak
MEM = "aliyun.com/gpu-mem"
PODS = int(os.environ.get("NODEPLUG_CHURN", "600"))
NODES = 20
PATIENCE = 60 + PODS / 4
"""Seconds: a multiple of what it takes."""
VERBS = {"filterVerb": "filter", "prioritizeVerb": "prioritize", "preemptVerb": "preempt", "bindVerb": "bind"}
PLUGIN = """
[extender]
listen = "127.0.0.1:{port}"
follow = true
kubeconfig = "{kubeconfig}"
[plugins.gpu-extender]
"""


def extender(control: ControlPlane, name: str, port: int) -> ScratchNode:
    """Start a kube-scheduler with this name, and return the daemon beside it."""
    root = control.folder / name
    root.mkdir()
    one = {"urlPrefix": f"http://127.0.0.1:{port}/gpu-mem", "nodeCacheCapable": True, "weight": 1, **VERBS}
    control.start_scheduler(name, [{**one, "managedResources": [{"name": MEM}]}], requests=1000)
    plugin = PLUGIN.format(port=port, kubeconfig=control.folder / "kubeconfig")
    return ScratchNode(root, plugin, beside=control.node.pid, fork=True)


def rejected(
    control: ControlPlane, folder: Path, total: int, *schedulers: str, growing: bool = False
) -> list[Rejection]:
    """Have so many pods come and go, and return whom kubelets have rejected; tell how fast it was."""

    async def live() -> list[Rejection]:
        async with open_fleet(control, folder, NODES) as fleet:
            churn = Churn(fleet.client, MEM, schedulers, total, places=11 * NODES, growing=growing)
            begun = time.monotonic()
            try:
                async with asyncio.timeout(PATIENCE):
                    await churn.run()
            except TimeoutError:
                found = f"{churn.ended}, {fleet.rejections}; these wait: {churn.waiting}"
                raise AssertionError(f"of {total} pods in {PATIENCE:g} s: {found}") from None
            took = time.monotonic() - begun
            sys.stdout.write(f"{total} pods in {took:.1f} s: {dict(churn.ended)}, rejected {fleet.rejections}\n")
            assert churn.ended.total() == total
            assert churn.ended["Failed"] == len(churn.rejected) == len(fleet.rejections)
            return fleet.rejections

    with control.node.netns.entered():
        return asyncio.run(live())


def test_kubelets_reject_no_pod_that_the_extender_has_placed(control: ControlPlane, short_path: Path) -> None:
    with extender(control, "cards", 9813):
        found = rejected(control, short_path, PODS, "cards")
    assert len(found) <= PODS / 600, found  # one for a machine that stands still for seconds


def test_few_pods_are_rejected_whose_containers_need_more_than_their_init_container_has_left_to_them(
    control: ControlPlane, short_path: Path
) -> None:
    with extender(control, "growing", 9817):
        assert len(rejected(control, short_path, 200, "growing", growing=True)) <= 2


def test_without_the_extender_kubelets_reject_pods_that_other_nodes_had_a_card_for(
    control: ControlPlane, short_path: Path
) -> None:
    control.start_scheduler("plain", [], requests=1000)
    found = rejected(control, short_path, 200, "plain")
    assert any(one.elsewhere for one in found)


def test_two_schedulers_each_with_an_extender_have_few_pods_rejected(control: ControlPlane, short_path: Path) -> None:
    with extender(control, "left", 9814), extender(control, "right", 9815):
        found = rejected(control, short_path, 250, "left", "right")
    assert len(found) <= 80  # both place as fast as they can, and know of each other's pods some milliseconds later
