"""A node whose containers have limits by the kernel: the plugin, the mock's NVML, real cgroups, and the hook as run.

The hook is the one of the CDI spec, executed as a runtime does it: by its path and arguments, with a state on stdin.
"""

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nodeplug import (
    Device,
    DeviceAllocate,
    DeviceList,
    DeviceReleased,
    Grant,
    Holding,
    Host,
    Journal,
    NotFound,
    ResourceClaim,
    ResourceName,
)
from nodeplug.testing import host
from nodeplug.testing.waiting import until
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.containers import Containers
from nodeplug_gpu.kernel import spec
from nodeplug_gpu.plugin import Gpu

GIB = 1 << 30
MEM, SHARED = ResourceName("aliyun.com/gpu-mem"), ResourceName("nvidia.com/gpu.shared")
MEMORY: dict[str, Any] = {"sharing": "memory", "cards": {"index": [0]}}
REPLICAS: dict[str, Any] = {"sharing": "replicas", "resource": SHARED, "replicas": 4, "cards": {"index": [0]}}
HANGS = 180.0
"""Seconds after which the test ends a hook that should have ended by itself."""
FIRST = "GPU-00000000-0000-0000-0000-000000000000"
SET = "nvmlDeviceSetMemoryLimits_v1"


class Node:
    """A node with the mock's cards, on which containers start."""

    def __init__(self, folder: Path, nvml: Any, cgroups: Any) -> None:
        self.folder, self.nvml, self.cgroups = folder, nvml, cgroups
        self.held: list[Holding] = []
        self.made: list[Gpu] = []
        self.sleepers: list[subprocess.Popen[bytes]] = []
        (folder / "containers").mkdir()

    def plugin(
        self,
        wanted: str | None = "kernel",
        resources: Sequence[Mapping[str, Any]] = (MEMORY,),
        section: str = "host",
        former: Sequence[Host] = (),
        *,
        claims: bool = False,
    ) -> Gpu:
        """Start the plugin; a former one has ended."""
        for before in self.made:
            before.stop()
        access = {"visible_devices": "none", "cdi_folder": str(self.folder / "cdi")}
        config = {
            "driver_root": str(self.nvml.root),
            "poll": "50ms",
            "resources": [{"access": access, **one} for one in resources],
            **({} if wanted is None else {"limits": wanted}),
        }
        (self.folder / section).mkdir(exist_ok=True)
        given = host(self.folder / section, plugin=section, holders=self._holders, former=former, serves_claims=claims)
        self.made.append(Gpu(GpuConfig.model_validate(config), given))
        self.made[-1]._limits.containers = lambda: Containers(logs=self.folder / "containers")
        self.made[-1].start()
        return self.made[-1]

    def _holders(self, resource: ResourceName) -> Sequence[Holding]:
        return [one for one in self.held if one.resource == resource]

    def listed(self, resource: ResourceName = MEM) -> Sequence[Device]:
        try:
            return self.made[-1].device_list(DeviceList(resource=resource))
        except NotFound:
            return ()

    def allocate(self, count: int, resource: ResourceName = MEM) -> Grant:
        """Allocate as kubelet does, which then reports it."""
        until(lambda: any(one.healthy for one in self.listed(resource)))
        devices = tuple(one for one in self.listed(resource) if one.healthy)[:count]
        ids = tuple(one.id for one in devices)
        granted = self.made[-1].device_allocate(DeviceAllocate(resource=resource, ids=ids, devices=devices))
        self.held.append(Holding(resource=resource, ids=ids, namespace="default", pod="web", container="main"))
        return granted

    def claim(self, name: str, count: int, *containers: str, again: bool = False, observes: bool = False) -> Grant:
        """Allocate for a claim that some containers of one pod use; again, or without having anything by it."""
        until(lambda: any(one.healthy for one in self.listed()))
        taken = set() if again or observes else {name for one in self.held for name in one.ids}
        devices = tuple(one for one in self.listed() if one.healthy and one.id not in taken)[:count]
        ids = tuple(one.id for one in devices)
        claim = ResourceClaim(uid=f"uid-{name}", namespace="default", name=name, request="gpu", admin_access=observes)
        granted = self.made[-1].device_allocate(DeviceAllocate(resource=MEM, ids=ids, devices=devices, claim=claim))
        self.held += [
            Holding(resource=MEM, ids=ids, namespace="default", pod="web", container=one, claim=claim)
            for one in containers
        ]
        return granted

    def end_claims(self) -> None:
        """End every claim: the daemon tells the plugin at once."""
        ended, self.held = self.held, []
        for one in ended:
            self.made[-1].device_released(
                DeviceReleased(
                    resource=MEM, ids=one.ids, namespace=one.namespace, pod="", container="", claim=one.claim
                )
            )

    @property
    def spec(self) -> dict[str, Any]:
        return dict(json.loads((self.folder / "cdi" / spec.FILE).read_bytes()))

    def container(self, name: str = "main") -> tuple[str, int]:
        """Have a process in a cgroup of its own, as a runtime has before the program starts; return id and pid."""
        number = f"{len(self.sleepers):064x}"
        (self.folder / "containers" / f"web_default_{name}-{number}.log").touch()
        cgroup = self.cgroups.make()
        self.sleepers.append(subprocess.Popen(["sleep", "1000"]))
        (cgroup / "cgroup.procs").write_text(str(self.sleepers[-1].pid))
        return number, self.sleepers[-1].pid

    def start(self, granted: Grant, container: tuple[str, int]) -> subprocess.CompletedProcess[str]:
        """Do what the runtime does with the CDI names of a container: run the hook of each."""
        (name,) = granted.cdi
        (device,) = [one for one in self.spec["devices"] if name == f"{spec.KIND}={one['name']}"]
        (hook,) = device["containerEdits"]["hooks"]
        assert hook["hookName"] == "createRuntime"
        state = {"ociVersion": "1.0.2", "id": container[0], "status": "creating", "pid": container[1], "bundle": "/b"}
        return subprocess.run(
            hook["args"],
            executable=hook["path"],
            input=json.dumps(state),
            capture_output=True,
            text=True,
            env={},
            check=False,
            timeout=HANGS,
        )

    def cgroup(self, container: tuple[str, int]) -> str:
        lines = Path(f"/proc/{container[1]}/cgroup").read_text().splitlines()
        (path,) = [line[3:] for line in lines if line.startswith("0::")]
        return str(self.cgroups.root / path.lstrip("/"))

    def told(self) -> list[tuple[str, int | None]]:
        """What the document says of each container of the first card."""
        found = self.made[-1].inspect()["cards"][0]["containers"]
        return [(one["limits"], one["limit_bytes"]) for one in found]


def limit_keys(journal: Journal) -> list[str]:
    return [one.key for one in journal.entries() if one.phase == "limit"]
