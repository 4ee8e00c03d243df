"""Pods come and go on two nodes with real kubelets, daemons and publishers, placed by a real kube-scheduler.

With the extender kubelets reject none. `NODEPLUG_KUBELET_CHURN` is how many pods there shall be.
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.programs import need
from tests.real.consumers import PrivateNode
from tests.real.consumers.churn import Churn
from tests.real.consumers.hollow import BOUNDS
from tests.real.consumers.nodes import Nodes, open_nodes
from tests.real.test_extender_churn import extender

from nodeplug.kubeapi.client import Client
from nodeplug.kubeapi.credentials import Credentials, find
from nodeplug.testing import folders
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.soak
MEM = "aliyun.com/gpu-mem"
PODS = int(os.environ.get("NODEPLUG_KUBELET_CHURN", "30"))
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
PLUGINS = """
[cluster]
kubeconfig = "{kubeconfig}"
[plugins.bridge]
[plugins.host-local]
[plugins.portmap]
[plugins.bandwidth]
[plugins.sbr]
[plugins.tuning]
[plugins.firewall]
[plugins.loopback.config]
names = ["loopback"]
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
simulated = [{{ memory = "16GiB", count = 3 }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
"""


@pytest.fixture(scope="module")
def nodes(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[Nodes]:
    need("etcd")
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    programs, runtime = consumer("kubernetes"), consumer("containerd")
    names = ("gpu-1", "gpu-2")
    try:
        with open_nodes(
            *(folder, names, make_private_node, PLUGINS),
            resource=MEM,
            conflists=[PUBLISHED],
            programs=programs,
            runtime=runtime,
        ) as made:
            yield made
    finally:
        for log in folder.glob("*/n/daemon.log"):
            sys.stdout.write(log.read_text()[-4000:])  # shown when a test fails
        folders.remove(folder)


def says_what_is_free(nodes: Nodes, name: str) -> bool:
    found = nodes.control.call("GET", f"/api/v1/nodes/{name}")
    return "nodeplug.io/gpu-mem" in (found["metadata"].get("annotations") or {})


def test_kubelets_reject_next_to_no_pod_that_the_extender_has_placed(nodes: Nodes) -> None:
    names = [lab.private.name for lab in nodes.labs]
    until(lambda: all(says_what_is_free(nodes, name) for name in names))
    patience = 120 + 4.0 * PODS

    async def live() -> Churn:
        async with Client(Credentials(find(nodes.control.folder / "kubeconfig")), BOUNDS) as client:
            churn = Churn(client, MEM, ["cards"], PODS, places=16)
            try:
                async with asyncio.timeout(patience):
                    await churn.run()
            except TimeoutError:
                found = f"{churn.ended}, {churn.rejected}; these wait: {churn.waiting}"
                raise AssertionError(f"of {PODS} pods in {patience:g} s: {found}") from None
            return churn

    with extender(nodes.control, "cards", 9816), nodes.control.node.netns.entered():
        begun = time.monotonic()
        churn = asyncio.run(live())
        sys.stdout.write(f"{PODS} pods in {time.monotonic() - begun:.1f} s: {dict(churn.ended)}\n")
    assert len(churn.rejected) <= 1 + PODS / 100, churn.rejected  # figures that change between judgement and admission
    assert churn.ended.total() == PODS
