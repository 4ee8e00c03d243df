"""Real mounts below one temporary folder, and a FlexVolume service over plugin objects.

Whatever a test leaves mounted below its folder is unmounted, and every loop device of a file there is detached.
"""

import asyncio
import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    Claim,
    PluginError,
    VolumeAttached,
    VolumeClaim,
    VolumeId,
    VolumeIdentify,
    VolumePublish,
    VolumeStage,
    VolumeUnpublish,
    VolumeUnstage,
    hookimpl,
    mount,
)
from nodeplug.contract.host import Host
from nodeplug.contract.journal import Journal, read_boot_id
from nodeplug.contract.mounts import mounts, unmount
from nodeplug.exec.frame import Frame
from nodeplug.flex.service import FlexService
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.testing import host
from nodeplug.volumes.service import Volumes

LOOP_CLR_FD = 0x4C01
PATIENCE = 10.0
PLUGIN_DIR = "/usr/libexec/kubernetes/kubelet-plugins/volume/exec"


def mounts_below(folder: Path) -> list[str]:
    return [mount.target for mount in mounts() if Path(mount.target).is_relative_to(folder)]


def _loops_now(folder: Path) -> dict[str, str]:
    """Loop devices by name whose backing file is, or was, below a folder."""
    found = {}
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):
            backing = path.read_text().strip()
            if backing.startswith(f"{folder}/"):
                found[path.parts[3]] = backing
    return found


def _is_going(name: str) -> bool:
    """Whether a loop device ends with its last user, and no mount here is one."""
    try:
        autoclear = Path(f"/sys/block/{name}/loop/autoclear").read_text()
    except OSError:
        return True
    return autoclear.strip() == "1" and all(mount.source != f"/dev/{name}" for mount in mounts())


def loops_below(folder: Path) -> dict[str, str]:
    """Loop devices by name whose backing file is, or was, below a folder.

    One that nothing here uses any more gets seconds to go: whoever looks at all loop devices (udev, another daemon that
    searches for its own image) opens it for a moment, and autoclear waits for the last one.
    """
    until = time.monotonic() + PATIENCE
    while True:
        found = _loops_now(folder)
        if time.monotonic() > until or not any(_is_going(name) for name in found):
            return found
        time.sleep(0.02)


def clean(folder: Path) -> None:
    for target in reversed(mounts_below(folder)):
        unmount(target, lazy=True)
    for name in _loops_now(folder):
        with suppress(OSError):
            descriptor = os.open(f"/dev/{name}", os.O_RDONLY)
            try:
                fcntl.ioctl(descriptor, LOOP_CLR_FD)
            finally:
                os.close(descriptor)


@pytest.fixture
def area(tmp_path: Path) -> Iterator[Path]:
    """A folder for state, staging and pods, cleaned of mounts and loop devices afterwards."""
    folder = tmp_path.resolve() / "node"
    folder.mkdir()
    try:
        yield folder
    finally:
        clean(folder)
    assert mounts_below(folder) == []


@dataclass
class Node:
    """One daemon's volume side over some plugin objects; a new one over the same area is a restarted daemon."""

    area: Path
    plugins: Mapping[str, object]
    deadlines: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.registry = Registry()
        for name, plugin in self.plugins.items():
            self.registry.load(name, plugin, "tests", self.deadlines.get(name, {}))
        self.journal = Journal(self.area / "journal")
        self.staging_folder = self.area / "staging"

    def service(self) -> FlexService:
        runner = Runner()
        return FlexService(self.registry, runner, Volumes(runner, self.journal, self.staging_folder))

    def path(self, driver: str) -> str:
        return f"{PLUGIN_DIR}/{driver.replace('/', '~')}/{driver.rpartition('/')[2]}"

    async def handle(self, service: FlexService, driver: str, *argv: str) -> dict[str, Any]:
        reply = await service.handle(Frame("flex", self.path(driver), argv), ())
        assert (reply.exit, reply.stderr) == (0, b"")
        document = json.loads(reply.stdout)
        assert isinstance(document, dict)
        return document

    def call(self, driver: str, *argv: str) -> dict[str, Any]:
        """Run one verb on a service of its own."""

        async def once() -> dict[str, Any]:
            return await self.handle(self.service(), driver, *argv)

        return asyncio.run(once())

    def recover(self) -> None:
        async def once() -> None:
            await self.service().volumes.recover(self.registry)

        asyncio.run(once())

    def target(self, name: str) -> Path:
        """Make a pod's directory as kubelet does: 0750, before each mount."""
        path = self.area / "pods" / name
        path.mkdir(mode=0o750, parents=True, exist_ok=True)
        return path

    def mount(self, driver: str, target: Path, options: Mapping[str, str]) -> dict[str, Any]:
        return self.call(driver, "mount", str(target), json.dumps(dict(options)))

    def unmount(self, driver: str, target: Path) -> dict[str, Any]:
        return self.call(driver, "unmount", str(target))

    @property
    def mounted(self) -> list[str]:
        return [str(Path(target).relative_to(self.area)) for target in mounts_below(self.area)]

    @property
    def records(self) -> list[str]:
        return [entry.key for entry in self.journal.entries()]


@pytest.fixture
def make_node(area: Path) -> Any:
    def make(deadlines: Mapping[str, Mapping[str, float]] | None = None, **plugins: object) -> Node:
        return Node(area, plugins, deadlines or {})

    return make


@pytest.fixture
def make_host(area: Path) -> Any:
    def make(name: str) -> Host:
        (area / "hosts" / name).mkdir(parents=True, exist_ok=True)
        return host(area / "hosts" / name, plugin=name, boot_id=read_boot_id())

    return make


@pytest.fixture
def loops(area: Path) -> Any:
    return lambda: loops_below(area)


class Stager:
    """Stages a tmpfs and leaves everything else to the host's defaults."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail = ""
        self.pause = 0.0

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("acme/disk")]

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        self.calls.append("stage")
        time.sleep(self.pause)
        mount("tmpfs", request.staging_path, "tmpfs", options=("size=1M",))
        if self.fail == "stage":
            raise PluginError("the disk is on fire")

    @hookimpl
    def volume_unstage(self, request: VolumeUnstage) -> None:
        self.calls.append("unstage")


class Publisher:
    """Publishes a tmpfs for each pod, without staging."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.act: Callable[[VolumePublish], None] = lambda _: None
        self.act_down: Callable[[VolumeUnpublish], None] = lambda _: None
        self.mounts = True

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim("acme/disk")]

    @hookimpl
    def volume_id(self, request: VolumeIdentify) -> VolumeId:
        return VolumeId(request.options["name"])

    @hookimpl
    def volume_publish(self, request: VolumePublish) -> None:
        self.calls.append(f"publish {request.volume_id}")
        if self.mounts:
            mount("tmpfs", request.target_path, "tmpfs", read_only=request.read_only)
        self.act(request)

    @hookimpl
    def volume_unpublish(self, request: VolumeUnpublish) -> None:
        self.calls.append(f"unpublish {request.volume_id}")
        self.act_down(request)


class Attacher(Stager):
    """A driver with attach: kubelet stages in its own directory."""

    @hookimpl
    def volume_attach(self, request: Any) -> VolumeAttached:
        return VolumeAttached(device=f"/dev/disk/{request.options['name']}")

    @hookimpl
    def volume_detach(self, request: Any) -> None:
        self.calls.append(f"detach {request.volume_name} {request.node}")


@pytest.fixture
def stager() -> Stager:
    return Stager()


@pytest.fixture
def publisher() -> Publisher:
    return Publisher()


@pytest.fixture
def attacher() -> Attacher:
    return Attacher()


@pytest.fixture
def node(make_node: Any, stager: Stager) -> Any:
    """A node whose only driver is the stager; test files of real drivers have their own."""
    return make_node(disk=stager)
