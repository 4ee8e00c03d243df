"""csi-sanity, the conformance suite of CSI, against drivers that a real daemon serves."""

import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.disks import attached_disk
from tests.programs import need
from tests.real.sanity_skips import excused, rows

from nodeplug.contract.mounts import mounts, unmount
from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.pb import csi_v1_pb2_grpc as pb_grpc
from nodeplug.testing import ScratchNode
from nodeplug.testing.folders import remove
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.real


@dataclass(frozen=True)
class Verdict:
    """What csi-sanity said, by the name of the spec.

    Attributes:
        failed: and why.
        skipped: since the driver lacks something.
        outside: not among those that were asked for.
        passed: the others.
    """

    failed: Mapping[str, str]
    skipped: frozenset[str]
    outside: frozenset[str]
    passed: frozenset[str]


@dataclass(frozen=True)
class Sanity:
    """csi-sanity, and a daemon in a short folder."""

    program: Path
    root: Path

    def run(
        self,
        plugins: str,
        driver: str,
        before: Callable[[Path], AbstractContextManager[Path]] = nullcontext,
        **flags: str,
    ) -> Verdict:
        """Ask a driver.

        Args:
            plugins: the section of its plugin.
            driver: its name.
            before: what stands before its socket; only the specs of a node are asked for then.
            flags: of csi-sanity.
        """
        node = ScratchNode(self.root / "n", plugins, supervisor='listen = ""\ncsi = true')
        folder = node.paths.plugins_registry
        folder.mkdir(parents=True)
        socket = folder.parent / "plugins" / driver / "csi.sock"
        report = self.root / "report.xml"
        options = {"mountdir": str(self.root / "mnt"), "stagingdir": str(self.root / "staging")} | flags
        with node, ExitStack() as stack:
            until(socket.exists)
            endpoint = stack.enter_context(before(socket))
            done = subprocess.run(
                [
                    *(str(self.program), f"--csi.endpoint=unix:{endpoint}", f"--ginkgo.junit-report={report}"),
                    *([] if endpoint == socket else ["--ginkgo.focus=Node Service|Identity"]),
                    *(f"--csi.{name}={value}" for name, value in options.items()),
                ],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            until(lambda: not [one for one in mounts() if Path(one.target).is_relative_to(self.root)])
        assert report.exists(), done.stdout[-4000:] + done.stderr[-4000:]
        return read(report)


def read(report: Path) -> Verdict:
    failed: dict[str, str] = {}
    skipped, outside, passed = set(), set(), set()
    for case in ET.parse(report).iter("testcase"):
        name = case.attrib["name"].removeprefix("[It] ")
        if name.startswith("["):
            continue
        left_out = case.find("skipped")
        if (failure := case.find("failure")) is not None:
            failed[name] = f"{failure.attrib.get('message', '')} {failure.text or ''}"
        elif left_out is None:
            passed.add(name)
        elif left_out.attrib["message"] == "skipped":  # without a reason: by --ginkgo.focus
            outside.add(name)
        else:
            skipped.add(name)
    return Verdict(failed, frozenset(skipped), frozenset(outside), frozenset(passed))


@pytest.fixture
def sanity(consumer: Callable[[str], Path], short_path: Path) -> Iterator[Sanity]:
    (short_path / "n").mkdir()
    yield Sanity(consumer("tools") / "csi-sanity", short_path)
    for left in reversed([one.target for one in mounts() if Path(one.target).is_relative_to(short_path)]):
        unmount(left, lazy=True)
    remove(short_path)


def loopfile(directory: Path, fs_type: str) -> str:
    return f'[plugins.loopfile.config]\ndirectory = "{directory}"\nfs_type = "{fs_type}"\ndefault_size = "320Mi"\n'


@pytest.mark.parametrize("kind", ["mount", "block"])
@pytest.mark.parametrize("fs_type", ["ext4", "xfs"])
def test_loopfile_does_all_that_csi_asks_for(sanity: Sanity, tmp_path: Path, fs_type: str, kind: str) -> None:
    with attached_disk(tmp_path / "disk", "xfs", "4G") as disk:
        verdict = sanity.run(
            loopfile(disk / "images", fs_type),
            "loopfile.nodeplug",
            testvolumesize=str(320 << 20),
            testvolumeexpandsize=str(384 << 20),
            testvolumeaccesstype=kind,
        )
    assert verdict.failed == {}
    assert verdict.skipped == excused("loopfile")
    assert verdict.outside == frozenset()
    assert len(verdict.passed) >= 60


class Maker(pb_grpc.ControllerServicer):
    """Creates volumes for a driver that creates none: what an administrator does by hand."""

    def __init__(self, make: Callable[[str], tuple[str, Mapping[str, str]]]) -> None:
        self._make = make
        self._made: dict[str, pb.Volume] = {}

    def ControllerGetCapabilities(self, request: Any, context: Any) -> pb.ControllerGetCapabilitiesResponse:  # noqa: N802
        kind = pb.ControllerServiceCapability.RPC.CREATE_DELETE_VOLUME
        one = pb.ControllerServiceCapability(rpc=pb.ControllerServiceCapability.RPC(type=kind))
        return pb.ControllerGetCapabilitiesResponse(capabilities=[one])

    def CreateVolume(self, request: pb.CreateVolumeRequest, context: Any) -> pb.CreateVolumeResponse:  # noqa: N802
        if request.name not in self._made:
            handle, attributes = self._make(f"v{len(self._made)}")
            self._made[request.name] = pb.Volume(volume_id=handle, volume_context=attributes, capacity_bytes=1 << 20)
        return pb.CreateVolumeResponse(volume=self._made[request.name])

    def DeleteVolume(self, request: pb.DeleteVolumeRequest, context: Any) -> pb.DeleteVolumeResponse:  # noqa: N802
        return pb.DeleteVolumeResponse()


class Gateway(grpc.GenericRpcHandler):
    """Sends calls on to a driver, and says that it has a controller, too."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def service(self, details: grpc.HandlerCallDetails) -> "grpc.RpcMethodHandler[bytes, bytes]":
        asked = str(details.method)
        onward: grpc.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(asked)

        def answer(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                reply = onward(request)
            except grpc.RpcError as error:
                context.abort(error.code(), error.details() or "")
            if asked != "/csi.v1.Identity/GetPluginCapabilities":
                return reply
            service = pb.PluginCapability.Service(type=pb.PluginCapability.Service.CONTROLLER_SERVICE)
            more = pb.GetPluginCapabilitiesResponse(capabilities=[pb.PluginCapability(service=service)])
            return reply + more.SerializeToString()  # one message after another is both merged

        return grpc.unary_unary_rpc_method_handler(answer)


@contextmanager
def beside(driver: Path, maker: Maker) -> Iterator[Path]:
    """Serve a controller and a driver as one; yield the socket."""
    socket = driver.with_name("both.sock")
    server = grpc.server(ThreadPoolExecutor(4))
    with grpc.insecure_channel(f"unix:{driver}") as channel:
        pb_grpc.add_ControllerServicer_to_server(maker, server)
        server.add_generic_rpc_handlers((Gateway(channel),))
        server.add_insecure_port(f"unix:{socket}")
        server.start()
        yield socket
        server.stop(None).wait()


def hostdir(folder: Path) -> tuple[str, Callable[[str], tuple[str, Mapping[str, str]]]]:
    def make(name: str) -> tuple[str, Mapping[str, str]]:
        (folder / name).mkdir()
        return f"data/{name}", {"root": "data", "path": name}

    return f'[plugins.hostdir.config.roots.data]\npath = "{folder}"\n', make


def tmpfs(_: Path) -> tuple[str, Callable[[str], tuple[str, Mapping[str, str]]]]:
    return "[plugins.tmpfs]\n", lambda name: (name, {"size": "1Mi"})


def image(folder: Path) -> tuple[str, Callable[[str], tuple[str, Mapping[str, str]]]]:
    need("mksquashfs")
    (folder / "tree").mkdir()

    def make(name: str) -> tuple[str, Mapping[str, str]]:
        command = ["mksquashfs", f"{folder}/tree", f"{folder}/{name}.squashfs", "-quiet", "-no-progress"]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        return f"data/{name}.squashfs", {"root": "data", "path": f"{name}.squashfs", "overlay": "4Mi"}

    return f'[plugins.image.config]\nmax_overlay = "8Mi"\n[plugins.image.config.roots.data]\npath = "{folder}"\n', make


def fuse(folder: Path) -> tuple[str, Callable[[str], tuple[str, Mapping[str, str]]]]:
    need("bindfs")
    folder.chmod(0o755)

    def make(name: str) -> tuple[str, Mapping[str, str]]:
        (folder / name).mkdir(mode=0o777)
        return name, {"program": "bindfs", "folder": name}

    section = (
        f'[plugins.fuse.config.programs.bindfs]\ncommand = ["bindfs", "-f", "{folder}/{{folder}}", "{{mountpoint}}"]\n'
        '[plugins.fuse.config.programs.bindfs.options.folder]\npattern = "[a-z0-9]+"\n'
    )
    return section, make


@pytest.mark.parametrize("driver", [hostdir, tmpfs, image, fuse])
def test_a_driver_that_creates_no_volumes_serves_those_of_others(
    sanity: Sanity, driver: Callable[[Path], tuple[str, Callable[[str], tuple[str, Mapping[str, str]]]]]
) -> None:
    folder = Path(tempfile.mkdtemp(dir="/var/tmp")).resolve()
    plugins, make = driver(folder)
    name = f"{driver.__name__}.nodeplug"
    try:
        verdict = sanity.run(plugins, name, lambda socket: beside(socket, Maker(make)))  # type: ignore[abstract]
    finally:
        shutil.rmtree(folder)
    assert verdict.failed == {}
    assert verdict.skipped == excused(driver.__name__)
    assert not [
        name for name in verdict.outside if "[Controller Server]" not in name and "[GroupController" not in name
    ]
    assert len(verdict.passed) >= 18


def test_the_guide_to_these_tests_says_what_is_skipped_and_why() -> None:
    guide = (Path(__file__).parent / "README.md").read_text()
    missing = [row for row in rows() if row not in guide]
    assert not missing, "add to tests/real/README.md: " + "\n".join(missing)
