"""A reload as kubelet sees it: streams stay open, devices stay allocatable, requests wait for the new instance."""

import asyncio
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from nodeplug import Claim, Device, DeviceAllocate, DeviceClaim, DeviceId, Grant, Host, ResourceName, hookimpl
from nodeplug.config import PluginSection
from nodeplug.device.kubelet import KubeletFolders
from nodeplug.device.resources import Resources
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.supervision import Supervision
from nodeplug.testing import host
from nodeplug.testing.kubelet import AdmissionError, Kubelet

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
THING = ResourceName("example.com/thing")
OTHER = ResourceName("example.com/other")


class Things:
    """Hands out things; its configuration says what goes wrong, and shows in every grant."""

    class Config(BaseModel, extra="forbid"):
        resources: tuple[str, ...] = (THING,)
        count: int = 4
        mark: str = "first"
        refused: bool = False
        failing: bool = False
        listless: bool = False

    starting: ClassVar[threading.Event] = threading.Event()
    """Set: a start goes on."""
    life: ClassVar[list[str]] = []

    def __init__(self, config: Config, host: Host) -> None:
        if config.refused:
            raise OSError("no such card")
        self._config, self._life = config, self.life  # of its test: it may stop when another one runs

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [DeviceClaim(name) for name in self._config.resources]

    @hookimpl
    def start(self) -> None:
        self.starting.wait(20)
        if self._config.failing:
            raise OSError("the card does not answer")
        self._life.append(f"start {self._config.mark}")

    @hookimpl
    def stop(self) -> None:
        self._life.append(f"stop {self._config.mark}")

    @hookimpl
    def device_list(self) -> Sequence[Device]:
        if self._config.listless:
            raise OSError("the list is gone")
        grant = Grant(env={"MARK": self._config.mark})
        return [Device(DeviceId(f"d{number}"), grant=grant) for number in range(self._config.count)]


class Allocating(Things):
    """Also has the hook of Allocate."""

    allocating: ClassVar[threading.Event] = threading.Event()
    """Set: an Allocate goes on."""

    @hookimpl
    def device_allocate(self, request: DeviceAllocate) -> Grant | None:
        self._life.append(f"allocate {self._config.mark}")
        self.allocating.wait(20)
        self._life.append(f"allocated {self._config.mark}")
        return None


class Preparing(Things):
    """Has an option that kubelet must know."""

    @hookimpl
    def device_prestart(self) -> None: ...


def section(plugin: type = Things, **config: Any) -> PluginSection:
    return PluginSection(uses=f"{plugin.__module__}:{plugin.__name__}", isolation="thread", config=config)


def hostdev(path: Path, mark: int) -> PluginSection:
    resource = {"resource": THING, "groups": [{"nodes": [{"path": str(path / "a*")}], "count": 4}]}
    return PluginSection(uses="hostdev", config={"resources": [{**resource, "env": {"MARK": str(mark)}}]})


@pytest.fixture(autouse=True)
def unhindered() -> Iterator[None]:
    Things.starting.set()
    Allocating.allocating.set()
    Things.life = []
    yield
    Things.starting.set()
    Allocating.allocating.set()


@dataclass(slots=True)
class Node:
    """The plugins of a daemon, without the daemon, beside a kubelet."""

    kubelet: Kubelet
    lifecycle: Lifecycle
    resources: Resources

    async def apply(self, **sections: PluginSection) -> None:
        await self.lifecycle.apply(sections)

    def connections(self, resource: str = THING) -> tuple[int, int]:
        """Return how often a resource was registered, and how many of its streams have ended."""
        registered = [request for request in self.kubelet.registrations if request.resource_name == resource]
        return len(registered), len(registered) - self.kubelet.streams(resource)

    async def mark(self, pod: str) -> str:
        """Admit a pod with one thing and return the mark of the instance that granted it."""
        answer = await self.kubelet.admit(pod, {THING: 1})
        return answer[THING].envs["MARK"]


@asynccontextmanager
async def serving(root: Path) -> AsyncIterator[Node]:
    registry = Registry()
    runner = Runner()

    def make_host(name: str) -> Host:
        (root / "host").mkdir(exist_ok=True)
        return host(root / "host", plugin=name)

    async with Kubelet(root) as kubelet:
        paths = KubeletFolders(kubelet.device_plugins, kubelet.plugins_registry)
        resources = Resources(runner, paths, lambda: registry.routes("device"), "register", 5.0)
        lifecycle = Lifecycle(registry, runner, make_host, resources)
        yield Node(kubelet, lifecycle, resources)
        await lifecycle.stop_all()


@pytest.mark.node
@pytest.mark.parametrize("reloads", [10, pytest.param(100, marks=pytest.mark.whole)])
def test_many_reloads_of_hostdev_end_no_stream_and_refuse_no_pod(root: Path, run: Run, reloads: int) -> None:
    dev = root / "dev"
    dev.mkdir()
    os.mknod(dev / "a0", stat.S_IFCHR | 0o600, os.makedev(1, 3))

    async def story() -> None:
        async with serving(root) as node:
            await node.apply(hostdev=hostdev(dev, 0))
            await node.kubelet.until_allocatable(THING, 4)
            lowest = 4
            done = asyncio.Event()

            async def admit_all_the_time() -> int:
                nonlocal lowest
                admitted = 0
                while not done.is_set():
                    await node.mark(f"pod{admitted}")
                    node.kubelet.remove_pod(f"pod{admitted}")
                    lowest = min(lowest, node.kubelet.allocatable(THING))
                    admitted += 1
                    await asyncio.sleep(0)
                return admitted

            admitting = asyncio.create_task(admit_all_the_time())
            for number in range(1, reloads + 1):
                await node.apply(hostdev=hostdev(dev, number))
                lowest = min(lowest, node.kubelet.allocatable(THING))
            done.set()
            assert await admitting > reloads // 10
            assert await node.mark("last") == str(reloads)
            assert (lowest, node.connections()) == (4, (1, 0))

    run(story())


def test_a_changed_list_goes_out_once_on_the_stream_that_was_open(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(count=4))
            await node.kubelet.until_allocatable(THING, 4)
            lists = node.kubelet.resources[THING].lists
            await node.apply(a=section(count=6))
            await node.kubelet.until_allocatable(THING, 6)
            await node.mark("pod")
            assert node.kubelet.resources[THING].lists == lists + 1
            assert node.connections() == (1, 0)

    run(story())


def test_an_equal_list_is_not_sent_again(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section())
            await node.kubelet.until_allocatable(THING, 4)
            lists = node.kubelet.resources[THING].lists
            await node.apply(a=section(mark="second"))
            assert await node.mark("pod") == "second"
            assert node.kubelet.resources[THING].lists == lists

    run(story())


@pytest.mark.parametrize("plugin", [Things, Allocating])
def test_a_pod_that_is_admitted_in_the_gap_gets_the_grant_of_the_new_instance(
    plugin: type, root: Path, run: Run
) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(plugin))
            await node.kubelet.until_allocatable(THING, 4)
            Things.starting.clear()
            reload = asyncio.create_task(node.apply(a=section(plugin, mark="second")))
            while "stop first" not in Things.life:
                await asyncio.sleep(0.001)
            admitted = asyncio.create_task(node.mark("pod"))
            await asyncio.sleep(0.05)
            assert node.kubelet.allocatable(THING) == 4
            assert not admitted.done()
            Things.starting.set()
            assert await admitted == "second"
            await reload

    run(story())


def test_an_allocation_inside_the_old_instance_ends_before_that_is_stopped(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(Allocating))
            await node.kubelet.until_allocatable(THING, 4)
            Allocating.allocating.clear()
            admitted = asyncio.create_task(node.mark("pod"))
            while "allocate first" not in Things.life:
                await asyncio.sleep(0.001)
            reload = asyncio.create_task(node.apply(a=section(Allocating, mark="second")))
            await asyncio.sleep(0.05)
            Allocating.allocating.set()
            assert await admitted == "first"
            await reload
        assert Things.life[:5] == ["start first", "allocate first", "allocated first", "stop first", "start second"]

    run(story())


def test_other_hooks_make_kubelet_read_the_options_again(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section())
            await node.kubelet.until_allocatable(THING, 4)
            await node.apply(a=section(Preparing))
            await node.kubelet.until(lambda: len(node.kubelet.registrations) == 2)
            await node.kubelet.until_allocatable(THING, 4)
            endpoint = node.kubelet.resources[THING].endpoint
            assert endpoint is not None
            assert endpoint.options.pre_start_required

    run(story())


@pytest.mark.parametrize("leaving", [False, True], ids=["from a plugin that stays", "from a plugin that goes"])
def test_a_resource_keeps_its_stream_when_it_moves_to_another_plugin(leaving: bool, root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(resources=(THING, OTHER)))
            await node.kubelet.until_allocatable(THING, 4)
            await node.kubelet.until_allocatable(OTHER, 4)
            rest = {} if leaving else {"a": section(resources=(OTHER,))}
            await node.apply(**rest, b=section(mark="b"))
            assert await node.mark("pod") == "b"
            assert node.connections() == (1, 0)
            assert {status.resource: status.plugin for status in node.resources.status()}[THING] == "b"

    run(story())


def test_a_resource_that_is_claimed_no_more_loses_its_stream(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(resources=(THING, OTHER)))
            await node.kubelet.until_allocatable(THING, 4)
            await node.kubelet.until_allocatable(OTHER, 4)
            await node.apply(a=section(resources=(THING,)))
            await node.kubelet.until_allocatable(OTHER, 0)
            assert node.connections() == (1, 0)
            assert [status.resource for status in node.resources.status()] == [THING]

    run(story())


async def give_away(node: Node, **fault: Any) -> None:
    """Let `a` give OTHER to `b`, which has a resource of its own before, and let `b` be at fault."""
    await node.apply(a=section(resources=(THING, OTHER)), b=section(resources=("example.com/own",)))
    await node.kubelet.until_allocatable(OTHER, 4)
    await node.kubelet.until_allocatable("example.com/own", 4)
    await node.apply(
        a=section(resources=(THING,)), b=section(resources=("example.com/own", OTHER), mark="second", **fault)
    )


def test_a_resource_whose_new_owner_goes_back_to_its_former_configuration_leaves_kubelet(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await give_away(node, failing=True)
            await node.kubelet.until_allocatable(OTHER, 0)
            assert [status.resource for status in node.resources.status()] == ["example.com/own", THING]

    run(story())


def test_a_resource_whose_new_owner_never_ran_leaves_kubelet_with_it(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(resources=(THING, OTHER)))
            await node.kubelet.until_allocatable(OTHER, 4)
            await node.apply(a=section(resources=(THING,)), b=section(resources=(OTHER,), failing=True))
            assert {status.resource: status.plugin for status in node.resources.status()}[OTHER] == "b"
            await node.apply(a=section(resources=(THING,)))
            await node.kubelet.until_allocatable(OTHER, 0)
            assert [status.resource for status in node.resources.status()] == [THING]

    run(story())


@pytest.mark.parametrize(
    "fault",
    [{"refused": True}, {"failing": True}, {"listless": True}, {"misspelt": True}],
    ids=lambda fault: next(iter(fault)),
)
def test_a_new_configuration_that_does_not_work_keeps_devices_allocatable(
    fault: dict[str, Any], root: Path, run: Run
) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section())
            await node.kubelet.until_allocatable(THING, 4)
            await node.apply(a=section(mark="second", **fault))
            assert await node.mark("pod") == "first"
            assert node.kubelet.allocatable(THING) == 4
            assert node.connections() == (1, 0)

    run(story())


class Once(Things):
    """Starts once in a process."""

    @hookimpl
    def start(self) -> None:
        if self._life:
            raise OSError("the card is gone")
        super().start()


def test_devices_are_unhealthy_when_neither_configuration_starts_and_heal_with_the_start(root: Path, run: Run) -> None:
    async def story() -> None:
        async with serving(root) as node:
            await node.apply(a=section(Once))
            await node.kubelet.until_allocatable(THING, 4)
            await node.apply(a=section(Once, mark="second"))
            await node.kubelet.until_allocatable(THING, 0)
            (status,) = node.resources.status()
            assert {device.reason for device in status.devices} == {status.error}
            assert "the card is gone" in status.error
            assert node.kubelet.capacity(THING) == 4
            with pytest.raises(AdmissionError, match="no healthy devices present"):
                await node.mark("early")
            Things.life.clear()
            node.lifecycle.registry.slots["a"].retry_at = 0
            await Supervision(node.lifecycle).retry_failed()
            await node.kubelet.until_allocatable(THING, 4)
            assert await node.mark("late") == "second"
            assert node.connections() == (1, 0)

    run(story())
