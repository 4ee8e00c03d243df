"""One life of a device plugin, with the kubelet stand-in and with kubelet: the plugin sees the same calls.

What is left to chance is not compared: which ids are picked, and the order of several resources in one container.
"""

import asyncio
import base64
import difflib
import json
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from tests.real.consumers import Containerd, KubeletProcess, PrivateNode
from tests.real.consumers.either_kubelet import Acted, Asks, Node, Real

from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.pb import deviceplugin_v1beta1_pb2_grpc as pb_grpc
from nodeplug.pb import podresources_v1_pb2 as podresources_pb
from nodeplug.pb import podresources_v1_pb2_grpc as podresources_grpc
from nodeplug.testing import Kubelet, folders
from nodeplug.testing.kubelet.recording import RecordingPlugin

FIRST, SECOND, WATCHED = "example.com/first", "example.com/second", "example.com/watched"
ONE = {FIRST: 1}
PATIENCE = 60.0
Story = dict[str, list[str]]


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
    keys = sorted(set(document) - {"BootID"})  # of releases to come
    return [f"keys {keys}", f"registered {sorted(registered.items())}", *map(str, sorted(held.items()))]


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
            rejection = await self.node.admit(name, containers or [Asks(ONE)])
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
    await teller.pod("two", Asks({FIRST: 2}))
    await teller.pod("pair", Asks(ONE, "left"), Asks(ONE, "right"))
    await teller.pod("reuse-less", Asks({FIRST: 1}, "prepare", init=True), Asks({FIRST: 2}))
    await teller.pod("reuse-equal", Asks({FIRST: 1}, "prepare", init=True), Asks(ONE))
    await teller.pod("reuse-more", Asks({FIRST: 2}, "prepare", init=True), Asks(ONE, "left"), Asks(ONE, "right"))
    await teller.pod("too-many", Asks({FIRST: 90}))
    plugin.prefer = lambda _available, _size: ["bogus"]
    await teller.pod("bogus", Asks({FIRST: 2}))
    plugin.prefer = lambda available, _size: available[:1]
    await teller.pod("short", Asks({FIRST: 2}))
    for failure in ("prefer", "allocate", "empty"):
        plugin.failure = failure
        await teller.pod(f"fails-{failure}")
    plugin.failure = ""
    async with teller.step("second resource"):
        await other.register()
        await until_taken(node, other)
    await teller.pod("both", Asks({FIRST: 1, SECOND: 1}), in_order=False)
    await teller.pod("nothing", Asks({SECOND: 0}))
    watched = RecordingPlugin(WATCHED, node.root / "plugins_registry", {"w0": True}, calls=teller.calls)
    async with teller.step("plugin watcher", in_order=False) as said:
        await watched.serve()
        await until_taken(node, watched)
        await until("the outcome", lambda: len(teller.calls) == 4)
    await teller.pod("watched", Asks({WATCHED: 1}))
    async with teller.step("podresources") as said:
        said.extend(await summary_of_podresources(node))
    await watched.stop()
    await node.until_ended(WATCHED)
    await teller.pod("unwatched", Asks({WATCHED: 1}))


async def second_half(teller: Teller, plugin: RecordingPlugin, other: RecordingPlugin) -> None:
    """Lose health, pods, and kubelet."""
    node, names = teller.node, list(plugin.healthy)
    plugin.mark(**dict.fromkeys(names, False))
    await until_taken(node, plugin)
    await teller.pod("sick")
    plugin.mark(**dict.fromkeys(names, True))
    await until_taken(node, plugin)
    await teller.pod("healed")
    await node.remove("two")
    await teller.pod("after-two", Asks({FIRST: 2}))
    async with teller.step("checkpoint") as said:
        said.extend(summary_of_checkpoint(node))
    (node.root / "device-plugins" / "a-file").touch()
    async with teller.step("restart of kubelet") as said:
        await node.restart()
        await until("the end of both streams", lambda: plugin.streams + other.streams == 0)
        said.append(f"socket {plugin.socket.exists()}, file {(node.root / 'device-plugins' / 'a-file').exists()}")
    await teller.pod("early")  # kubelet meets it after those that ran
    async with teller.step("pods that ran") as said:
        said.extend(await node.rejected())
    for each in (plugin, other):
        await each.stop()
        await each.register()
        await until_taken(node, each)
    await teller.pod("after-restart")


async def last_part(teller: Teller, plugin: RecordingPlugin) -> None:
    """Lose the plugin to another, and altogether."""
    node = teller.node
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
        await last_part(teller, plugin)
    finally:
        await plugin.stop()
        await other.stop()
    return teller.story


async def acted_life(root: Path, *, old: bool) -> Story:
    # The stand-in's default is a release that knows plugins by their sockets.
    release = Kubelet(root, old_style=old, watch_plugins=True, keyed_by="socket" if old else "resource")
    async with release as kubelet:
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
    for name in ("c", "k", "bin", "flex"):
        (folder / name).mkdir()
    with (
        make_private_node(folder / "n") as node,
        Containerd(node, folder / "c", folder / "bin", folder / "conf", programs=runtime) as containerd,
        KubeletProcess(node, folder / "k", kubelet_program, containerd, folder / "flex") as kubelet,
    ):
        yield kubelet
        kubelet.clear()
        kubelet.stop()
        containerd.clear()


def lines(story: Story) -> list[str]:
    """Return the story without what the plugin's own deadline or Go's way to print a message decides."""
    found = [f"{step}: {line}" for step, said in story.items() for line in said]
    return [re.sub("(GetDevicePluginOptions|in allocation response).*", r"\1", line) for line in found]


def test_plugin_sees_the_same_life_with_the_stand_in_and_with_kubelet(kubelet: KubeletProcess, folder: Path) -> None:
    (folder / "a").mkdir()
    acted = asyncio.run(acted_life(folder / "a", old=kubelet.old))
    real = asyncio.run(life(Real(kubelet, kubelet.node.folder / "var/lib/kubelet")))
    difference = difflib.unified_diff(lines(acted), lines(real), "stand-in", "kubelet", lineterm="", n=1)
    assert lines(acted) == lines(real), "\n".join(difference)
