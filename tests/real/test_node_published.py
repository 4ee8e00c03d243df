"""A daemon with cards, a stand-in kubelet and a real API server: what the cluster is told, and what waits for it."""

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.real.consumers import ControlPlane

from nodeplug import PluginError, Pod, ResourceName
from nodeplug.testing import AdmissionError, FlexCaller, FlexFailure, FlexVolume, Kubelet, ScratchNode
from nodeplug.testing.waiting import until
from nodeplug_gpu.free_memory import FreeMemory, decode

MEM = ResourceName("aliyun.com/gpu-mem")
PLUGINS = """
[cluster]
kubeconfig = "{kubeconfig}"
resync = "1s"
[plugins.tmpfs]
[plugins.gpu.config]
driver = "simulated"
poll = "200ms"
gpushare = true
simulated = [{{ model = "NVIDIA A10", memory = "8Gi", count = 2, compute_capability = [8, 6] }}]
[[plugins.gpu.config.resources]]
sharing = "memory"
withhold = "never"
"""


@dataclass
class Published:
    """A daemon, and what the API server has of it."""

    control: ControlPlane
    daemon: ScratchNode

    @property
    def node(self) -> dict[str, Any]:
        return dict(self.control.call("GET", f"/api/v1/nodes/{self.control.node.name}"))

    @property
    def free(self) -> FreeMemory | None:
        text = (self.node["metadata"].get("annotations") or {}).get("nodeplug.io/gpu-mem")
        return decode(text) if text else None

    def has(self, *pods: str) -> bool:
        return self.free is not None and [str(one) for one in self.free.pods] == list(pods)

    def events(self, name: str) -> list[tuple[str, str]]:
        return [(one["reason"], one["note"]) for one in self.control.events(name)]

    def put(self, name: str) -> str:
        """Create a pod on this node, and return its uid."""
        spec = {"nodeName": self.control.node.name, "containers": [{"name": "main", "image": "none"}]}
        made = self.control.call("POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec})
        return str(made["metadata"]["uid"])

    def kubelet(self) -> Kubelet:
        return Kubelet(self.daemon.paths.device_plugins.parent)


@pytest.fixture(scope="module")
def published(cluster: ControlPlane) -> Iterator[Published]:
    node = cluster.node
    metadata = {"name": node.name, "labels": {"kubernetes.io/hostname": node.name}}
    cluster.call("POST", "/api/v1/nodes?fieldManager=kubelet", {"metadata": metadata})
    supervisor = (
        f'listen = ""\ninstall = true\nnode_name = "{node.name}"\ndevice_poll = "200ms"\npodresources_poll = "200ms"'
    )
    plugins = PLUGINS.format(kubeconfig=cluster.folder / "kubeconfig")
    daemon = ScratchNode(node.folder, plugins, supervisor=supervisor, beside=node.pid, fork=True)
    with daemon:
        yield Published(cluster, daemon)
    sys.stdout.write(daemon.log)  # shown when a test fails


def live(published: Published, story: Callable[[Kubelet], Any]) -> None:
    """Have kubelet serve meanwhile."""

    async def go() -> None:
        async with published.kubelet() as kubelet, asyncio.timeout(120):
            await kubelet.until_allocatable(MEM, 16)
            await story(kubelet)

    asyncio.run(go())


async def beside(work: Callable[[], Any]) -> Any:
    """Do something in a thread: kubelet serves on this loop."""
    return await asyncio.get_running_loop().run_in_executor(None, work)


async def told(holds: Callable[[], Any]) -> None:
    """Wait until the API server has something."""
    await beside(lambda: until(holds, 60))


def test_a_pod_is_in_the_figures_and_has_gpushares_annotations(published: Published) -> None:
    published.put("web")

    async def story(kubelet: Kubelet) -> None:
        await told(published.has)
        await kubelet.admit("web", {MEM: 5})
        await told(lambda: published.has("default/web"))
        free = published.free
        assert free is not None
        assert sorted((one.units, one.free) for one in free.cards) == [(8, 3), (8, 8)]
        (card,) = [one for one in free.cards if one.free == 3]

        def annotated() -> bool:
            found = published.control.pod("web")["metadata"].get("annotations") or {}
            return bool(found.get("ALIYUN_COM_GPU_MEM_IDX") == str(card.minor))

        await told(annotated)
        labels = published.node["metadata"]["labels"]
        assert labels["nvidia.com/gpu.product"] == "NVIDIA-A10"
        assert (labels["nvidia.com/gpu.count"], labels["nvidia.com/gpu.family"]) == ("2", "ampere")
        assert labels["nodeplug.io/plugin-gpu"] == "true"
        kubelet.remove_pod("web")
        await kubelet.admit("next", {MEM: 1})  # kubelet forgets a pod that has ended at the next admission
        await told(lambda: published.has("default/next"))

    live(published, story)


def test_who_describes_the_pod_or_the_node_learns_why_it_does_not_start(published: Published) -> None:
    uid = published.put("stuck")
    paths = published.daemon.paths
    caller = FlexCaller(paths.flexvolume, paths.device_plugins.parent, "nodeplug/tmpfs")
    with pytest.raises(FlexFailure):
        caller.mount(Pod("stuck", "default", uid), FlexVolume("data", {"size": "nonsense"}))

    async def story(kubelet: Kubelet) -> None:
        with pytest.raises(AdmissionError):
            await kubelet.admit("greedy", {MEM: 12})
        name = published.control.node.name
        await told(lambda: published.events("stuck") and published.events(name))
        ((reason, note),) = published.events("stuck")
        assert reason == "VolumeNotMounted"
        assert "nonsense" in note
        (refused,) = [note for reason, note in published.events(name) if reason == "DevicesNotAllocated"]
        assert "12 units of aliyun.com/gpu-mem wanted on one card" in refused

    live(published, story)


def test_without_its_api_server_a_node_serves_as_before_and_catches_up(published: Published) -> None:
    control, daemon = published.control, published.daemon
    until(lambda: published.free is not None, 60)
    control.kill_api()

    async def story(kubelet: Kubelet) -> None:
        await kubelet.admit("alone", {MEM: 2})
        await told(lambda: daemon.status()["cluster"]["problems"])
        status = await beside(daemon.status)
        assert status["ready"], status["reasons"]
        await beside(daemon.kill)  # between two writes, for all that anybody knows
        await beside(daemon.start)
        await kubelet.until_allocatable(MEM, 16)
        await kubelet.admit("later", {MEM: 3})
        await beside(control.start_api)
        await told(lambda: published.has("default/alone", "default/later"))
        await told(lambda: not daemon.status()["cluster"]["problems"])

    live(published, story)


@pytest.mark.soak
def test_a_node_that_is_deleted_and_comes_back_gets_everything_again(published: Published) -> None:
    control, name = published.control, published.control.node.name

    async def story(_: Kubelet) -> None:
        await told(lambda: published.free is not None)
        await beside(lambda: control.call("DELETE", f"/api/v1/nodes/{name}"))
        await told(lambda: "no node" in json.dumps(published.daemon.status()["cluster"]["problems"]))
        with pytest.raises(PluginError, match="404"):
            control.call("GET", f"/api/v1/nodes/{name}")
        metadata = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        control.call("POST", "/api/v1/nodes?fieldManager=kubelet", {"metadata": metadata})
        await told(lambda: published.free is not None)
        shown = (await beside(published.daemon.status))["cluster"]
        assert "nodeplug.io/gpu-mem" in shown["annotations"]
        assert shown["written_at"] > 0
        table = await beside(lambda: published.daemon.run("status"))
        assert "nodeplug.io/gpu-mem" in table.stdout

    live(published, story)
