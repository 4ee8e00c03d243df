"""The life cycle of plugins in processes of their own, with a requester for each hook."""

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import pytest
from tests.children import children_of
from tests.ended import has_ended
from tests.node.workers.forked_workers import forking

import nodeplug as n
from nodeplug.cni.delegate import Delegation
from nodeplug.config import PluginSection
from nodeplug.contract.hookspecs import ANSWERS, RESERVED
from nodeplug.hosting.call import Call
from nodeplug.hosting.lifecycle import Lifecycle
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.hosting.supervision import Supervision
from nodeplug.testing import host
from nodeplug.testing.forked_workers import Forking
from nodeplug.worker import spawning
from nodeplug.worker.cgroups import Cgroups

GUEST = "worker_guest:Guest"
CNI: Mapping[str, Any] = {"claim": "net", "network": "n", "version": "1.0.0", "config": {"type": "net"}}
ATTACHMENT: Mapping[str, Any] = {"container_id": "c1", "ifname": "eth0", "args": {"K": "v"}}
DEVICE: Mapping[str, Any] = {"resource": n.ResourceName("example.com/thing")}
EXTENDER: Mapping[str, Any] = {"claim": "thing", "pod": {"metadata": {"name": "p"}}}
VOLUME: Mapping[str, Any] = {"driver": "example/disk", "volume_id": n.VolumeId("v")}
IDS = (n.DeviceId("d0"),)


def requests(own: n.Netns) -> Mapping[str, n.Request | None]:
    """Return a request for each hook that a front calls; None for those without one."""
    cni: Mapping[str, Any] = {**CNI, "host_netns": own}
    attachment: Mapping[str, Any] = {**cni, **ATTACHMENT}
    return {
        **dict.fromkeys(("prepare", "start", "stop", "health", "inspect", "metrics", "cluster_report")),
        "device_list": n.DeviceList(**DEVICE),
        "device_allocate": n.DeviceAllocate(**DEVICE, ids=IDS, devices=(n.Device(IDS[0]),)),
        "device_prefer": n.DevicePrefer(**DEVICE, available=IDS, must_include=(), size=1),
        "device_prestart": n.DevicePrestart(**DEVICE, ids=IDS),
        "device_released": n.DeviceReleased(**DEVICE, ids=IDS, namespace="a", pod="b", container="c"),
        "cni_add": n.CniAdd(**attachment, netns=own),
        "cni_del": n.CniDel(**attachment),
        "cni_check": n.CniCheck(**attachment, netns=own, prev_result=n.CniResult()),
        "cni_gc": n.CniGc(**cni, valid=(n.ValidAttachment(container_id="c1", ifname="eth0"),)),
        "cni_status": n.CniStatus(**cni),
        "volume_id": n.VolumeIdentify(driver="example/disk", options={"name": "v"}),
        "volume_attach": n.VolumeAttach(**VOLUME, node="a"),
        "volume_detach": n.VolumeDetach(driver="example/disk", volume_name="v", node="a"),
        "volume_is_attached": n.VolumeIsAttached(**VOLUME, node="a"),
        "volume_wait_attached": n.VolumeWaitAttached(**VOLUME, device="/dev/null"),
        "volume_stage": n.VolumeStage(**VOLUME, staging_path="/s"),
        "volume_publish": n.VolumePublish(**VOLUME, target_path="/t", secrets=n.Secrets({"key": b"\xff\x00"})),
        "volume_unpublish": n.VolumeUnpublish(**VOLUME, target_path="/t"),
        "volume_unstage": n.VolumeUnstage(**VOLUME, staging_path="/s"),
        "volume_expand": n.VolumeExpand(**VOLUME, new_size=4096),
        "volume_stats": n.VolumeStatsRequest(**VOLUME, mount_path="/t"),
        "volume_refresh": n.VolumePublish(**VOLUME, target_path="/t", secrets=n.Secrets({"key": b"\xff\x00"})),
        "volume_create": n.VolumeCreate(driver="example/disk", name="v", size=4096, topology=({"a/node": "b"},)),
        "volume_delete": n.VolumeDelete(**VOLUME),
        "volume_list": n.VolumeList(driver="example/disk"),
        "volume_capacity": n.VolumeCapacity(driver="example/disk", topology={"a/node": "b"}),
        "volume_snapshot": n.VolumeSnapshot(**VOLUME, name="s"),
        "volume_snapshot_delete": n.VolumeSnapshotDelete(driver="example/disk", snapshot_id="s"),
        "volume_snapshot_list": n.VolumeSnapshotList(driver="example/disk"),
        "extender_filter": n.ExtenderFilter(**EXTENDER, nodes={"a": {"metadata": {"name": "a"}}, "b": None}),
        "extender_prioritize": n.ExtenderPrioritize(**EXTENDER, nodes={"a": {"metadata": {"name": "a"}}, "b": None}),
        "extender_preempt": n.ExtenderPreempt(
            **EXTENDER, victims={"a": n.ExtenderVictims(pods=("u",), objects={"u": {"metadata": {"uid": "u"}}})}
        ),
        "extender_bind": n.ExtenderBind(claim="thing", namespace="ns", pod="p", uid="u", node="a"),
    }


HOOKS = tuple(hook for hook in ANSWERS if hook not in RESERVED)


@dataclass(slots=True)
class Guests:
    """A life cycle, and what tests ask of it."""

    lifecycle: Lifecycle
    own: n.Netns
    folder: Path
    refreshed: list[str] = field(default_factory=list)
    health_refreshed: list[str] = field(default_factory=list)
    cluster_refreshed: list[str] = field(default_factory=list)
    _keys: Iterator[int] = field(default_factory=lambda: iter(range(1 << 30)))

    def section(self, uses: str = GUEST, deadline: float = 60.0, load: float = 60.0, **more: Any) -> PluginSection:
        known = {key: more.pop(key) for key in PluginSection.model_fields if key in more}
        # A guest of which much is asked at once waits for the disk many times.
        deadlines = {"device_list": deadline, "claims": load, "inspect": 60.0}
        return PluginSection(uses=uses, config=more, deadline=deadlines, **{"isolation": "process", **known})

    async def apply(self, **sections: PluginSection) -> None:
        await self.lifecycle.apply(sections)

    async def call(self, hook: str, request: n.Request | None = None, name: str = "guest") -> Any:
        slot = self.lifecycle.registry.slots[name]
        wanted = request if request is not None else requests(self.own)[hook]
        arguments = {} if wanted is None else {"request": wanted}
        style = hook.partition("_")[0]
        kind: Any = style if style in {"cni", "device", "volume", "extender"} else None
        route: Any = slot.instance
        if kind is not None:
            claimed = {claim.kind: claim.name for claim in slot.instance.claims}
            route = self.lifecycle.registry.route(kind, claimed[kind])
        return await self.lifecycle.runner.call(route, hook, Call(hook, "a:b", f"key {next(self._keys)}"), arguments)

    def pid(self, name: str = "guest") -> int:
        worker = self.lifecycle.registry.slots[name].instance.worker
        assert worker is not None
        return worker.pid

    def state(self, name: str = "guest") -> str:
        return self.lifecycle.registry.slots[name].state

    async def until(self, condition: Callable[[], object], seconds: float = 60.0) -> None:
        async with asyncio.timeout(seconds):
            while not condition():
                await Supervision(self.lifecycle).retry_failed()
                await Supervision(self.lifecycle).end_hanging()
                await asyncio.sleep(0.02)


def children() -> set[int]:
    """Return the processes of this one that run: what other tests have left to be reaped is theirs."""
    return {pid for pid in children_of(os.getpid()) if not has_ended(pid)}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def holders(resource: n.ResourceName) -> list[n.Holding]:
    if resource != DEVICE["resource"]:
        raise n.NotReady("kubelet does not say")
    return [n.Holding(resource=resource, ids=IDS, namespace="ns", pod="pod", container="container")]


def attachments() -> list[n.CniRecord]:
    ip = n.CniIp(ip_interface("10.88.0.2/24"))
    of_container = {"container_id": "c1", "ifname": "eth0", "netns": "/run/netns/c1", "namespace": (4, 1)}
    return [
        n.CniRecord(
            **{**CNI, **of_container, "config": {"name": "n"}, "host": (4, 2), "result": n.CniResult(ips=(ip,))}
        )
    ]


Story = Callable[[Guests], Coroutine[Any, Any, None]]


@pytest.fixture(scope="session")
def forked_workers() -> Iterator[Forking]:
    with forking() as made:
        yield made


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forked_workers: Forking) -> Callable[..., None]:
    """Run a story of a test, and see that no process and no descriptor is left."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(spawning, "execute", forked_workers.execute)

    def play(story: Story, cgroups: Cgroups | None = None) -> None:
        async def whole() -> None:
            registry, runner = Registry(), Runner()
            delegation = Delegation(registry, visiting=runner.visiting)
            refreshed: list[str] = []
            (tmp_path / "former").mkdir(exist_ok=True)
            former = host(tmp_path / "former")
            former.journal.write("left", phase="done", data={"by": "a former plugin"})
            make_host = partial(
                host,
                tmp_path,
                delegate=delegation,
                refresh=refreshed.append,
                holders=holders,
                former=[former],
                attachments=attachments,
            )
            healths: list[str] = []
            clusters: list[str] = []

            def given(name: str) -> n.Host:
                return make_host(
                    plugin=name,
                    refresh_health=lambda: healths.append(name),
                    refresh_cluster=lambda: clusters.append(name),
                )

            lifecycle = Lifecycle(registry, runner, given, cgroups=cgroups or Cgroups(False))
            own = n.Netns.current()
            guests = Guests(lifecycle, own, tmp_path, refreshed, healths, clusters)
            before, others = open_files(), children()
            try:
                await story(guests)
            finally:
                await lifecycle.stop_all(0.1)
            await guests.until(lambda: children() <= others)
            await guests.until(lambda: open_files() <= before)
            own.close()

        asyncio.run(whole())

    return play
