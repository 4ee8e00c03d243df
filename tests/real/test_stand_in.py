"""One life of a device plugin, with the kubelet stand-in and with kubelet 1.20.2: the plugin sees the same calls.

What is left to chance is not compared: which ids are picked, and the order of several resources in one container.
"""

import asyncio
import base64
import difflib
import json
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc.aio
import pytest

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import podresources_v1_pb2 as podresources_pb
from nodeplug.pb import podresources_v1_pb2_grpc as podresources_grpc
from nodeplug.testing import AdmissionError, Kubelet, folders
from nodeplug.testing.consumers import Containerd, KubeletProcess, PrivateNode, pod
from nodeplug.testing.kubelet.recording import RecordingPlugin

FIRST, SECOND, WATCHED = "example.com/first", "example.com/second", "example.com/watched"
PATIENCE = 60.0
Story = dict[str, list[str]]


@dataclass(frozen=True)
class Asks:
    """A container, and what it asks for."""

    name: str = "main"
    limits: Mapping[str, int] = field(default_factory=lambda: {FIRST: 1})
    init: bool = False


class Node(Protocol):
    """Kubelet, acted out or real."""

    root: Path

    async def admit(self, name: str, containers: Sequence[Asks]) -> str:
        """Run a pod; return the sentence of its rejection, or nothing."""

    async def remove(self, name: str) -> None:
        """Take a pod away."""

    async def restart(self) -> None:
        """Start anew and meet all pods."""

    async def until_ended(self, resource: str) -> None:
        """Wait until the end of a stream is taken in."""


@dataclass
class Acted:
    """The stand-in."""

    kubelet: Kubelet
    root: Path

    async def admit(self, name: str, containers: Sequence[Asks]) -> str:
        try:
            for asks in containers:
                await self.kubelet.admit(name, asks.limits, container=asks.name, init=asks.init)
            for asks in containers:
                await self.kubelet.start_container(name, asks.name)
        except AdmissionError as error:
            return str(error)
        return ""

    async def remove(self, name: str) -> None:
        self.kubelet.remove_pod(name)

    async def restart(self) -> None:
        await self.kubelet.restart()
        assert await self.kubelet.readmit() == {}

    async def until_ended(self, resource: str) -> None:
        await self.kubelet.until_allocatable(resource, 0)


def manifest(name: str, containers: Sequence[Asks]) -> dict[str, Any]:
    """Return a static pod in the host's network, which needs no CNI plugin."""
    parts = []
    for asks in containers:
        (container,) = pod(name, "exit 0" if asks.init else "", limits=asks.limits)["spec"]["containers"]
        parts.append((asks.init, {**container, "name": asks.name}))
    made = pod(name, "")
    made["spec"]["hostNetwork"] = True
    made["spec"]["initContainers"] = [container for init, container in parts if init]
    made["spec"]["containers"] = [container for init, container in parts if not init]
    return made


@dataclass
class Real:
    """Kubelet 1.20.2."""

    kubelet: KubeletProcess
    root: Path

    async def admit(self, name: str, containers: Sequence[Asks]) -> str:
        await asyncio.to_thread(self.kubelet.put, manifest(name, containers))
        status = await asyncio.to_thread(self.kubelet.wait_for, f"pod {name}", lambda: self._settled(name))
        if status["phase"] != "Failed":
            return ""
        assert status["reason"] == "UnexpectedAdmissionError"
        found = re.fullmatch("Pod Allocate failed due to (.*), which is unexpected", status["message"])
        assert found, status
        return found[1]

    def _settled(self, name: str) -> Any:
        found = self.kubelet.find(name)
        status = found["status"] if found else {}
        states = [entry["state"] for entry in status.get("containerStatuses") or []]
        settled = status.get("phase") == "Failed" or (states and all("running" in state for state in states))
        return status if settled else None

    async def remove(self, name: str) -> None:
        await asyncio.to_thread(self.kubelet.drop, name)

    async def restart(self) -> None:
        await asyncio.to_thread(self.kubelet.stop)
        await asyncio.to_thread(self.kubelet.start)
        await asyncio.to_thread(self.kubelet.wait_for, "pods", self.kubelet.pods)

    async def until_ended(self, resource: str) -> None:
        text = f"listAndWatch ended unexpectedly for device plugin {resource}"
        await asyncio.to_thread(self.kubelet.wait_for, "the end", lambda: text in self.kubelet.log)
        await asyncio.sleep(1)  # it logs before it stores


def checkpoint(node: Node) -> dict[str, Any]:
    """Return kubelet's checkpoint."""
    path = node.root / "device-plugins" / "kubelet_internal_checkpoint"
    return dict(json.loads(path.read_text())) if path.exists() else {"Data": {"RegisteredDevices": {}}}


async def until(what: str, holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    try:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise AssertionError(f"{what} did not come true") from None


async def until_taken(node: Node, plugin: RecordingPlugin) -> None:
    """Wait until kubelet has stored the plugin's list: it writes the healthy ids into its checkpoint."""
    wanted = {name for name, good in plugin.healthy.items() if good}

    def taken() -> bool:
        return set(checkpoint(node)["Data"]["RegisteredDevices"].get(plugin.resource, ())) == wanted

    await until(f"a stored list of {plugin.resource}", taken)
    await asyncio.sleep(0.1)


def summary_of_checkpoint(node: Node) -> list[str]:
    """Return what the checkpoint holds, without ids and pod UIDs."""
    document = checkpoint(node)
    held = Counter(
        (
            entry["ContainerName"],
            entry["ResourceName"],
            str({numa: len(ids) for numa, ids in entry["DeviceIDs"].items()}),
            str(pb.ContainerAllocateResponse.FromString(base64.b64decode(entry["AllocResp"]))).strip(),
            " ".join(sorted(entry)),
        )
        for entry in document["Data"]["PodDeviceEntries"]
    )
    registered = {name: len(ids) for name, ids in document["Data"]["RegisteredDevices"].items()}
    return [f"keys {sorted(document)}", f"registered {sorted(registered.items())}", *map(str, sorted(held.items()))]


async def summary_of_podresources(node: Node) -> list[str]:
    """Return what List says, without ids."""
    async with grpc.aio.insecure_channel(f"unix:{node.root}/pod-resources/kubelet.sock") as channel:
        stub = podresources_grpc.PodResourcesListerStub(channel)
        listed = await stub.List(podresources_pb.ListPodResourcesRequest())
    return sorted(
        f"{found.name.removesuffix('-private-node')}/{container.name}: "
        + ", ".join(
            sorted(
                f"{len(entry.device_ids)} {entry.resource_name} of nodes {[node.ID for node in entry.topology.nodes]}"
                for entry in container.devices
            )
        )
        for found in listed.pod_resources
        for container in found.containers
    )


@dataclass
class Teller:
    """Runs steps, and writes down what the plugin saw in each."""

    node: Node
    calls: list[str] = field(default_factory=list)
    story: Story = field(default_factory=dict)

    @asynccontextmanager
    async def step(self, name: str, *, in_order: bool = True) -> AsyncIterator[list[str]]:
        self.calls.clear()
        said: list[str] = []
        yield said
        self.story[name] = said + (list(self.calls) if in_order else sorted(self.calls))

    async def pod(self, name: str, *containers: Asks, in_order: bool = True) -> None:
        async with self.step(name, in_order=in_order) as said:
            rejection = await self.node.admit(name, containers or [Asks()])
            said.append(f"rejected: {rejection}" if rejection else "runs")


async def refusal(node: Node, version: str, resource: str, endpoint: str = "absent.sock") -> str:
    """Register what no plugin should, and return what kubelet says."""
    async with grpc.aio.insecure_channel(f"unix:{node.root}/device-plugins/kubelet.sock") as channel:
        request = pb.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        try:
            await pb_grpc.RegistrationStub(channel).Register(request)
        except grpc.aio.AioRpcError as error:
            return f"{resource} {version}: {error.code().name} {error.details()}"
    return f"{resource} {version}: taken"


async def first_half(teller: Teller, plugin: RecordingPlugin, other: RecordingPlugin) -> None:
    """Register, allocate in every way, fail in every way."""
    node = teller.node
    async with teller.step("refusals") as said:
        said.append(await refusal(node, "v1alpha1", FIRST))
        said.append(await refusal(node, "v1beta1", "example.com/absent"))
        for name in ("noslash", "kubernetes.io/x", "requests.example.com/x", "example.com/a b", "EX.com/x", "a/b/c"):
            said.append(await refusal(node, "v1beta1", name))
        for length in (63, 64):
            said.append(await refusal(node, "v1beta1", "example.com/" + "x" * length))
        for length in (244, 245):
            said.append(await refusal(node, "v1beta1", ("ab." * length)[: length - 1] + "c/x"))
    async with teller.step("registration"):
        await plugin.register()
        await until_taken(node, plugin)
    await teller.pod("one")
    await teller.pod("two", Asks(limits={FIRST: 2}))
    await teller.pod("pair", Asks("left"), Asks("right"))
    await teller.pod("reuse-less", Asks("prepare", {FIRST: 1}, init=True), Asks("main", {FIRST: 2}))
    await teller.pod("reuse-equal", Asks("prepare", {FIRST: 1}, init=True), Asks())
    await teller.pod("reuse-more", Asks("prepare", {FIRST: 2}, init=True), Asks("left"), Asks("right"))
    await teller.pod("too-many", Asks(limits={FIRST: 90}))
    plugin.prefer = lambda _available, _size: ["bogus"]
    await teller.pod("bogus", Asks(limits={FIRST: 2}))
    plugin.prefer = lambda available, _size: available[:1]
    await teller.pod("short", Asks(limits={FIRST: 2}))
    for failure in ("prefer", "allocate", "empty"):
        plugin.failure = failure
        await teller.pod(f"fails-{failure}")
    plugin.failure = ""
    async with teller.step("second resource"):
        await other.register()
        await until_taken(node, other)
    await teller.pod("both", Asks(limits={FIRST: 1, SECOND: 1}), in_order=False)
    await teller.pod("nothing", Asks(limits={SECOND: 0}))
    watched = RecordingPlugin(WATCHED, node.root / "plugins_registry", {"w0": True}, calls=teller.calls)
    async with teller.step("plugin watcher", in_order=False) as said:
        await watched.serve()
        await until_taken(node, watched)
        await until("the outcome", lambda: len(teller.calls) == 4)
    await teller.pod("watched", Asks(limits={WATCHED: 1}))
    async with teller.step("podresources") as said:
        said.extend(await summary_of_podresources(node))
    await watched.stop()
    await node.until_ended(WATCHED)
    await teller.pod("unwatched", Asks(limits={WATCHED: 1}))


async def second_half(teller: Teller, plugin: RecordingPlugin, other: RecordingPlugin) -> None:
    """Lose health, pods, kubelet, and the plugin."""
    node, names = teller.node, list(plugin.healthy)
    plugin.mark(**dict.fromkeys(names, False))
    await until_taken(node, plugin)
    await teller.pod("sick")
    plugin.mark(**dict.fromkeys(names, True))
    await until_taken(node, plugin)
    await teller.pod("healed")
    await node.remove("two")
    await teller.pod("after-two", Asks(limits={FIRST: 2}))
    async with teller.step("checkpoint") as said:
        said.extend(summary_of_checkpoint(node))
    (node.root / "device-plugins" / "a-file").touch()
    async with teller.step("restart of kubelet") as said:
        await node.restart()
        await until("the end of both streams", lambda: plugin.streams + other.streams == 0)
        said.append(f"socket {plugin.socket.exists()}, file {(node.root / 'device-plugins' / 'a-file').exists()}")
    await teller.pod("early")
    for each in (plugin, other):
        await each.stop()
        await each.register()
        await until_taken(node, each)
    await teller.pod("after-restart")
    successor = RecordingPlugin(FIRST, plugin.folder, {"n0": True, "n1": True}, calls=teller.calls, generation=50)
    async with teller.step("take-over") as said:
        await successor.register()
        await until_taken(node, successor)
        said.append(f"streams of the old one {plugin.streams}, of the new one {successor.streams}")
        plugin.mark(more=True)
        await until_taken(node, plugin)
        said.append("the list of the old one counts")
        successor.mark(n2=True)
        await until_taken(node, successor)
        await plugin.stop()
        await asyncio.sleep(1)
    await teller.pod("after-take-over")
    async with teller.step("another take-over"):
        await plugin.register()
        await until_taken(node, plugin)
        await successor.stop()
        await asyncio.sleep(1)
    await teller.pod("after-another-take-over")
    async with teller.step("end of the stream"):
        await plugin.stop()
        await node.until_ended(FIRST)
    await teller.pod("while-away")
    async with teller.step("return"):
        await plugin.register()
        plugin.mark(last=True)
        await until_taken(node, plugin)
    await teller.pod("at-last")


async def life(node: Node) -> Story:
    """Live through it all."""
    teller = Teller(node)
    folder = node.root / "device-plugins"
    options = pb.DevicePluginOptions(pre_start_required=True, get_preferred_allocation_available=True)
    healthy = {f"d{number}": True for number in range(24)}
    plugin = RecordingPlugin(FIRST, folder, healthy, calls=teller.calls, options=options)
    other = RecordingPlugin(SECOND, folder, {"e0": True}, calls=teller.calls)
    try:
        await first_half(teller, plugin, other)
        await second_half(teller, plugin, other)
    finally:
        await plugin.stop()
        await other.stop()
    return teller.story


async def acted_life(root: Path) -> Story:
    async with Kubelet(root, old_style=True, watch_plugins=True) as kubelet:
        return await life(Acted(kubelet, root))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path on a real file system."""
    path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield path
    folders.remove(path)


@pytest.fixture
def kubelet(
    make_private_node: Callable[..., PrivateNode], runtime: Path | None, kubelet_program: Path, folder: Path
) -> Iterator[KubeletProcess]:
    """A real kubelet, without a daemon of ours and without networks."""
    if any(Path("/sys/fs/cgroup").glob("kubepods*")) or any(Path("/sys/fs/cgroup").glob("*/kubepods*")):
        pytest.skip("another kubelet has its pods on this machine, and two would remove each other's")
    for name in ("c", "k", "bin", "flex"):
        (folder / name).mkdir()
    with (
        make_private_node(folder / "n", cgroup="kubepods") as node,
        Containerd(node, folder / "c", folder / "bin", folder / "conf", programs=runtime) as containerd,
        KubeletProcess(node, folder / "k", kubelet_program, containerd, folder / "flex") as kubelet,
    ):
        yield kubelet
        kubelet.clear()
        kubelet.stop()
        containerd.clear()


def lines(story: Story) -> list[str]:
    return [f"{step}: {line}" for step, said in story.items() for line in said]


def test_plugin_sees_the_same_life_with_the_stand_in_and_with_kubelet(kubelet: KubeletProcess, folder: Path) -> None:
    (folder / "a").mkdir()
    acted = asyncio.run(acted_life(folder / "a"))
    real = asyncio.run(life(Real(kubelet, kubelet.node.folder / "var/lib/kubelet")))
    difference = difflib.unified_diff(lines(acted), lines(real), "stand-in", "kubelet", lineterm="", n=1)
    assert acted == real, "\n".join(difference)
