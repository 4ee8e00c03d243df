"""A plugin that runs in a process of its own, with every hook; its configuration says where it goes wrong, and how."""

import os
import socket
import sys
import threading
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

import guest_faults  # type: ignore[import-not-found]  # beside this file
from pydantic import BaseModel

import nodeplug as n
from nodeplug import hookimpl


class Guest:
    """Says in each answer which process it is."""

    class Config(BaseModel, extra="forbid"):
        at: str = ""
        how: str = ""
        once: str = ""
        during: str = ""
        """While there is such a file; empty: always."""
        name: str = "thing"

    def __init__(self, config: Config, host: n.Host) -> None:
        self._config = config
        self._host = host
        self._begin("construct")

    def _begin(self, hook: str) -> None:
        config = self._config
        if hook != config.at or (config.during and not Path(config.during).exists()):
            return
        if config.once:
            try:
                os.close(os.open(config.once, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return
        guest_faults.WAYS[config.how](self._host)

    @hookimpl
    def claims(self) -> list[n.Claim]:
        self._begin("claims")
        name = self._config.name
        served = n.VolumeClaim(f"example/{name}", metrics=False), n.ExtenderClaim(name)
        return [n.CniClaim(name), n.DeviceClaim(f"example.com/{name}"), *served]

    @hookimpl
    def prepare(self) -> None:
        self._begin("prepare")

    @hookimpl
    def start(self) -> None:
        self._begin("start")

    @hookimpl
    def stop(self) -> None:
        self._begin("stop")

    @hookimpl
    def health(self) -> None:
        self._begin("health")

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        self._begin("inspect")
        return {
            "pid": os.getpid(),
            "folder": str(Path.cwd()),
            "open": [str(one.readlink()) for one in Path("/proc/self/fd").iterdir() if one.is_symlink()],
            "modules": sorted(sys.modules),
        }

    @hookimpl
    def metrics(self) -> Sequence[n.Metric]:
        self._begin("metrics")
        return [n.Metric("things", "Things.", [n.Sample(float("inf"), {"a": "b"})])]

    @hookimpl
    def cluster_report(self) -> n.ClusterReport:
        self._begin("cluster_report")
        warning = n.PodWarning("Worn", "it wears out")
        return n.ClusterReport(
            labels={"example.com/a": "b"},
            annotations={"example.com/n": '{"c": 1}'},
            conditions=(n.NodeCondition(type="example.com/Worn", reason="Worn", message="it wears out"),),
            pods=(n.PodReport(namespace="ns", name="p", annotations={"d": "e"}, warnings=(warning,)),),
            config_maps=(n.NodeConfigMap(namespace="ns", name="m-node-1", data={"f": "g"}),),
        )

    @hookimpl
    def device_list(self, request: n.DeviceList) -> Sequence[n.Device]:
        self._begin("device_list")
        grant = n.Grant(env={"A": "b"}, nodes=(n.DeviceNode("/dev/null"),))
        return [n.Device(n.DeviceId("d0"), grant=grant, attributes={"a": True, "b": 1}), n.Device(n.DeviceId("d1"))]

    @hookimpl
    def device_allocate(self, request: n.DeviceAllocate) -> n.Grant | None:
        self._begin("device_allocate")
        return n.Grant(env={"PID": str(os.getpid())}) if "d0" in request.ids else None

    @hookimpl
    def device_prefer(self, request: n.DevicePrefer) -> Sequence[n.DeviceId]:
        self._begin("device_prefer")
        return list(request.available[: request.size])

    @hookimpl
    def device_prestart(self, request: n.DevicePrestart) -> None:
        self._begin("device_prestart")

    @hookimpl
    def device_released(self, request: n.DeviceReleased) -> None:
        self._begin("device_released")

    @hookimpl
    def cni_add(self, request: n.CniAdd) -> n.CniResult:
        self._begin("cni_add")
        if to := request.config.get("delegate"):
            return self._host.delegate(request, to, {"name": "x"})
        inside = n.Netns.current()
        inside.close()
        names = tuple(n.CniInterface(name) for _, name in socket.if_nameindex())
        return n.CniResult(interfaces=names, dns=n.CniDns(domain=request.netns.path))

    @hookimpl
    def cni_del(self, request: n.CniDel) -> None:
        self._begin("cni_del")

    @hookimpl
    def cni_check(self, request: n.CniCheck) -> None:
        self._begin("cni_check")

    @hookimpl
    def cni_gc(self, request: n.CniGc) -> None:
        self._begin("cni_gc")

    @hookimpl
    def cni_status(self, request: n.CniStatus) -> None:
        self._begin("cni_status")

    @hookimpl
    def volume_id(self, request: n.VolumeIdentify) -> n.VolumeId:
        self._begin("volume_id")
        return n.VolumeId(request.options.get("name", "v"))

    @hookimpl
    def volume_attach(self, request: n.VolumeAttach) -> n.VolumeAttached:
        self._begin("volume_attach")
        return n.VolumeAttached(device="/dev/null")

    @hookimpl
    def volume_detach(self, request: n.VolumeDetach) -> None:
        self._begin("volume_detach")

    @hookimpl
    def volume_is_attached(self, request: n.VolumeIsAttached) -> bool:
        self._begin("volume_is_attached")
        return True

    @hookimpl
    def volume_wait_attached(self, request: n.VolumeWaitAttached) -> str:
        self._begin("volume_wait_attached")
        return request.device

    @hookimpl
    def volume_stage(self, request: n.VolumeStage) -> None:
        self._begin("volume_stage")

    @hookimpl
    def volume_publish(self, request: n.VolumePublish) -> None:
        self._begin("volume_publish")
        if request.secrets != {"key": b"\xff\x00"} or "Secrets(key=***)" not in repr(request):
            raise n.InvalidRequest(f"not as sent: {request!r}")

    @hookimpl
    def volume_unpublish(self, request: n.VolumeUnpublish) -> None:
        self._begin("volume_unpublish")

    @hookimpl
    def volume_unstage(self, request: n.VolumeUnstage) -> None:
        self._begin("volume_unstage")

    @hookimpl
    def volume_expand(self, request: n.VolumeExpand) -> int:
        self._begin("volume_expand")
        return request.new_size

    @hookimpl
    def volume_refresh(self, request: n.VolumePublish) -> None:
        self._begin("volume_refresh")

    @hookimpl
    def volume_stats(self, request: n.VolumeStatsRequest) -> n.VolumeStats:
        self._begin("volume_stats")
        return n.VolumeStats(total=3, used=2, available=1)

    @hookimpl
    def volume_create(self, request: n.VolumeCreate) -> n.ProvisionedVolume:
        self._begin("volume_create")
        return n.ProvisionedVolume(
            volume_id=n.VolumeId(request.name), size=request.size, options={"a": "b"}, topology=request.topology
        )

    @hookimpl
    def volume_delete(self, request: n.VolumeDelete) -> None:
        self._begin("volume_delete")

    @hookimpl
    def volume_list(self, request: n.VolumeList) -> Sequence[n.ProvisionedVolume]:
        self._begin("volume_list")
        return [n.ProvisionedVolume(volume_id=n.VolumeId("v"), size=1, condition="worn")]

    @hookimpl
    def volume_capacity(self, request: n.VolumeCapacity) -> int:
        self._begin("volume_capacity")
        return 1 << 40

    @hookimpl
    def volume_snapshot(self, request: n.VolumeSnapshot) -> n.Snapshot:
        self._begin("volume_snapshot")
        return n.Snapshot(snapshot_id=request.name, volume_id=request.volume_id, size=1, created=1.5)

    @hookimpl
    def volume_snapshot_delete(self, request: n.VolumeSnapshotDelete) -> None:
        self._begin("volume_snapshot_delete")

    @hookimpl
    def volume_snapshot_list(self, request: n.VolumeSnapshotList) -> Sequence[n.Snapshot]:
        self._begin("volume_snapshot_list")
        return [n.Snapshot(snapshot_id="s", volume_id=n.VolumeId("v"), size=1, created=1.5, ready=False)]

    @hookimpl
    def extender_filter(self, request: n.ExtenderFilter) -> n.ExtenderVerdict:
        self._begin("extender_filter")
        reasons = {name: "it is whole" for name, node in request.nodes.items() if node is not None}
        return n.ExtenderVerdict(nodes=tuple(name for name in request.nodes if name not in reasons), failed=reasons)

    @hookimpl
    def extender_prioritize(self, request: n.ExtenderPrioritize) -> Mapping[str, int]:
        self._begin("extender_prioritize")
        return dict.fromkeys(request.nodes, 7)

    @hookimpl
    def extender_preempt(self, request: n.ExtenderPreempt) -> Mapping[str, n.ExtenderVictims]:
        self._begin("extender_preempt")
        return request.victims

    @hookimpl
    def extender_bind(self, request: n.ExtenderBind) -> None:
        self._begin("extender_bind")


class Confident(Guest):
    """Asks to run in the daemon."""

    isolation = "thread"


class Odd(Guest):
    """Asks for what there is not."""

    isolation = "container"


class Unprepared(Guest):
    """Has nothing to prepare."""

    prepare = None  # type: ignore[assignment]


class Policy(Guest):
    """Wraps what it does not own."""

    @hookimpl
    def claims(self) -> list[n.Claim]:
        return [n.ExclusiveClaim("policy")]

    @hookimpl(wrapper=True)
    def volume_expand(self, request: n.VolumeExpand) -> Generator[None, int, int]:  # type: ignore[override]
        (self._host.state_dir / "wrapped").write_text(f"{os.getpid()} {request.new_size}")
        return 2 * (yield)


class Asker(Guest):
    """Asks its host for all that there is, in the thread of the call and in one of its own."""

    @hookimpl
    def inspect(self) -> Mapping[str, Any]:
        told: dict[str, Any] = {"here": self._ask("here"), "plugin": self._host.plugin, "node": self._host.node_name}
        beside = threading.Thread(target=lambda: told.update(beside=self._ask("beside")))
        beside.start()
        beside.join()
        return told

    def _ask(self, where: str) -> Mapping[str, Any]:
        host = self._host
        host.log.warning("asking %s", where)
        host.refresh("example.com/thing")
        host.refresh_health()
        host.refresh_cluster()
        written = host.journal.write(where, phase="asked", data={"a": [1, None]}, request={"b": "\udcff"})
        host.journal.write("other", phase="asked")
        told: dict[str, Any] = {
            "written": written.key,
            "read": host.journal.read(where) == written,
            "stale": host.journal.is_stale(written),
            "entries": [entry.key for entry in host.journal.entries()],
            "holders": [(one.namespace, one.pod, list(one.ids)) for one in host.holders("example.com/thing")],
        }
        (record,) = host.attachments()
        told["attachments"] = [record.config["name"], record.namespace, str(record.result.ips[0].address)]
        (former,) = host.former_sections()
        told["former"] = [(entry.key, dict(entry.data)) for entry in former.journal.entries()]
        former.journal.write("taken", phase="by a successor")
        told["folder"] = str(former.state_dir)
        host.journal.remove(where)
        host.journal.count_as_removed("other", "its disk hangs")
        told["left"] = [entry.key for entry in host.journal.entries()]
        told["sockets"] = self._keep(where)
        try:
            host.holders("example.com/unknown")
        except n.NotReady as error:
            told["not ready"] = str(error)
        try:
            former.journal.write("x" * 10, phase="y", data={"z": "z" * (17 << 20)})
        except n.PluginError as error:
            told["too large"] = str(error)
        return told

    def _keep(self, where: str) -> list[object]:
        kept = self._host.sockets
        left, right = socket.socketpair()
        kept.keep(where, right)
        right.close()
        left.sendall(b"still open")
        found = kept.get(where)
        assert found is not None
        with left, found:
            told: list[object] = [found.recv(10).decode(), kept.names(), kept.get("unknown")]
        kept.drop(where)
        kept.drop("unknown")
        try:
            with socket.socket() as other:
                kept.keep("", other)
        except n.InvalidRequest as error:
            told.append(str(error))
        return [*told, kept.names()]
