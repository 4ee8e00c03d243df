"""A filesystem that is frozen under the state folder stops nobody who does not need it."""

import json
import os
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.programs import need

from nodeplug import Pod, mounts, unmount
from nodeplug.testing import BlockingKubelet, FlexCaller, FlexFailure, FlexVolume, ScratchNode
from nodeplug.testing.scratch_cni import new_netns
from nodeplug.testing.waiting import until

PLUGIN = """
import pathlib

from nodeplug import CniClaim, CniResult, Device, DeviceClaim, DeviceId, Grant, TryAgain, VolumeClaim, hookimpl

class Net:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [CniClaim("nodeplug-net"), DeviceClaim("example.com/thing")]

    @hookimpl
    def device_list(self):
        return [Device(DeviceId(name), grant=Grant(env={"THING": name})) for name in ("one", "two")]

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self, request):
        if not pathlib.Path(__file__).with_name("works").exists():
            raise TryAgain("it does not work yet")
"""
STAGER = """
from nodeplug import CniClaim, DeviceClaim, VolumeClaim, hookimpl, mount

class Stager:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [VolumeClaim("scratch/stager")]

    @hookimpl
    def volume_stage(self, request):
        mount("scratch", request.staging_path, "tmpfs")
"""
NET = '[plugins.net]\nuses = "net:Net"\n'


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the plugins: one for all daemons, so that one process forks them."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "net.py").write_text(PLUGIN)
    (folder / "stager.py").write_text(STAGER)
    return folder


@pytest.fixture
def works(code: Path) -> Iterator[Path]:
    """The file with which a DEL succeeds."""
    yield code / "works"
    (code / "works").unlink(missing_ok=True)


@pytest.fixture
def make_disk(has_loop_devices: None, tmp_path: Path, short_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a filesystem of its own at a folder of the node."""
    made: list[Path] = []

    def make(below: str) -> Path:
        folder = short_path / below
        _mount(tmp_path / f"image{len(made)}", folder)
        made.append(folder)
        return folder

    yield make
    for folder in made:
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True, check=False)
        subprocess.run(["umount", "-l", folder], check=True)


def _mount(image: Path, folder: Path) -> None:
    need("mkfs.ext4", "mount", "umount", "fsfreeze")
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)


@pytest.fixture
def disk(make_disk: Callable[[str], Path]) -> Path:
    return make_disk("var/lib/nodeplug")


@pytest.fixture
def node(disk: Path, short_path: Path, code: Path) -> Iterator[ScratchNode]:
    supervisor = 'listen = ""\ninstall = true\nnative_entrypoints = false\n'
    made = ScratchNode(short_path, NET, supervisor=supervisor, env={"PYTHONPATH": str(code)}, fork=True)
    made.start()
    until((made.paths.cni_bin / "nodeplug-net").exists)  # a slow installation goes on behind the start
    yield made
    # A thread that a disk holds keeps even a killed process: thaw first.
    for folder in (disk, made.paths.attachments):
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True, check=False)
    made.kill()


def entrypoint(
    node: ScratchNode, verb: str, container: str = "", netns: str = ""
) -> "subprocess.CompletedProcess[bytes]":
    env = {"CNI_COMMAND": verb, "CNI_PATH": str(node.paths.cni_bin), "PATH": "/usr/bin:/bin"}
    if container:
        env |= {"CNI_CONTAINERID": container, "CNI_IFNAME": "eth0"}
    if verb == "ADD" and not netns:
        with closing(new_netns()) as own:
            return call(node, env | {"CNI_NETNS": own.path})
    return call(node, env | {"CNI_NETNS": netns})


def call(node: ScratchNode, env: dict[str, str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(
        [node.paths.cni_bin / "nodeplug-net"],
        env=env,
        input=json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "nodeplug-net"}).encode(),
        capture_output=True,
        check=False,
    )


def freeze(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-f", disk], check=True)


def thaw(disk: Path) -> None:
    subprocess.run(["fsfreeze", "-u", disk], check=True)


@pytest.mark.whole
def test_a_daemon_starts_and_serves_on_a_frozen_state_folder(node: ScratchNode, disk: Path) -> None:
    node.kill()
    freeze(disk)
    node.start()
    assert entrypoint(node, "STATUS").returncode == 0
    thaw(disk)
    until(lambda: bool(node.status()["ready"]))


def test_a_daemon_starts_and_serves_beside_a_frozen_folder_of_volume_drivers(
    make_disk: Callable[[str], Path], node: ScratchNode
) -> None:
    node.kill()
    drivers = make_disk(str(node.paths.flexvolume.relative_to(node.root)))
    node.configure('[plugins.net]\nuses = "net:Net"\n[plugins.tmpfs]\n')
    node.start()
    assert list(drivers.glob("*/tmpfs"))
    node.kill()
    freeze(drivers)
    try:
        node.start()
        assert entrypoint(node, "STATUS").returncode == 0
    finally:
        thaw(drivers)


@pytest.mark.whole
def test_control_and_status_are_answered_while_the_disk_of_the_state_folder_is_frozen(
    node: ScratchNode, disk: Path
) -> None:
    freeze(disk)
    until(lambda: "state folder" in node.status()["reasons"])
    done = entrypoint(node, "STATUS")
    assert done.returncode == 0, done.stdout
    thaw(disk)
    until(lambda: bool(node.status()["ready"]))


def is_healthy(port: int) -> bool:
    """Ask as kubelet's probe does.

    Raises:
        TimeoutError: nobody answers.
    """
    with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=60) as answer:
        return bool(answer.status == 200)


def test_probes_are_answered_while_the_folder_of_the_exec_socket_is_frozen(
    make_disk: Callable[[str], Path], short_path: Path
) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    folder = make_disk("run/nodeplug")
    node = ScratchNode(short_path, "", supervisor=f'listen = "127.0.0.1:{port}"\n', fork=True)
    node.start()
    try:
        os.kill(node.pid, signal.SIGSTOP)  # else it could make the socket anew before the folder is frozen
        node.paths.exec_socket.unlink()
        freeze(folder)
        os.kill(node.pid, signal.SIGCONT)
        until(lambda: is_healthy(port) and "folder of the exec socket does not answer" in node.log)
        assert is_healthy(port)
        thaw(folder)
        until(lambda: "has been recreated" in node.log)
        assert node.status()["plugins"] == []
    finally:
        subprocess.run(["fsfreeze", "-u", folder], capture_output=True, check=False)
        node.kill()


def test_a_deferred_del_that_cannot_be_removed_from_a_frozen_disk_holds_up_nobody_else(
    node: ScratchNode, disk: Path, works: Path
) -> None:
    node.kill()
    assert entrypoint(node, "DEL", "c1").returncode == 0
    node.start()
    until(lambda: node.status()["spool"] == 1)
    freeze(disk)
    works.touch()  # the next replay succeeds, and its file cannot be removed
    until(lambda: "does not answer" in node.status()["reasons"].get("deferred DELs", ""))
    assert entrypoint(node, "STATUS").returncode == 0
    refused = json.loads(entrypoint(node, "ADD", "c1").stdout)
    assert (refused["code"], "deferred DELs does not answer" in refused["msg"]) == (11, True)
    thaw(disk)
    until(lambda: bool(node.status()["ready"]))
    until(lambda: not list((disk / "spool").glob("*.frame")))
    assert entrypoint(node, "ADD", "c1").returncode == 0


def confirmed(node: ScratchNode) -> int:
    """Return how many devices are known to be held."""
    (resource,) = node.status()["resources"]
    return int(resource["allocated"] - resource["unconfirmed"])


@contextmanager
def beside_kubelet(disk: Path, root: Path, code: Path) -> Iterator[tuple[ScratchNode, BlockingKubelet]]:
    """Give a node that is not started and a kubelet; the disk is thawed at the end, so that the node can end."""
    node = ScratchNode(root, NET, supervisor='listen = ""\n', env={"PYTHONPATH": str(code)}, fork=True)
    with BlockingKubelet(root / "var" / "lib" / "kubelet") as kubelet:
        try:
            yield node, kubelet
        finally:
            subprocess.run(["fsfreeze", "-u", disk], capture_output=True, check=False)
            node.kill()


@pytest.mark.whole
def test_devices_are_allocated_and_their_holders_known_while_the_disk_of_the_state_folder_is_frozen(
    disk: Path, short_path: Path, code: Path
) -> None:
    with beside_kubelet(disk, short_path, code) as (node, kubelet):
        node.start()
        kubelet.until_allocatable("example.com/thing", 2)
        freeze(disk)
        until(lambda: "state folder" in node.status()["reasons"])
        for count, pod in enumerate(("first", "second"), 1):
            kubelet.admit(pod, {"example.com/thing": 1})
            until(lambda: confirmed(node) == count)  # noqa: B023  it is asked in this very turn


def test_a_plugin_ends_while_kubelets_folder_of_sockets_is_frozen_and_its_socket_goes_when_that_answers(
    make_disk: Callable[[str], Path], short_path: Path, code: Path
) -> None:
    folder = make_disk("var/lib/kubelet/device-plugins")
    with beside_kubelet(folder, short_path, code) as (node, kubelet):
        node.start()
        kubelet.until_allocatable("example.com/thing", 2)
        freeze(folder)
        left = list(folder.glob("nodeplug-*.sock"))
        node.configure("")
        until(lambda: "configuration reloaded" in node.log)
        assert node.status()["resources"] == []
        thaw(folder)
        until(lambda: not any(path.exists() for path in left))
        node.configure(NET)
        kubelet.until_allocatable("example.com/thing", 2)


def test_a_daemon_starts_while_kubelets_folder_of_sockets_is_frozen_and_registers_when_it_answers(
    make_disk: Callable[[str], Path], short_path: Path, code: Path
) -> None:
    folder = make_disk("var/lib/kubelet/device-plugins")
    with beside_kubelet(folder, short_path, code) as (node, kubelet):
        freeze(folder)
        node.start()
        until(lambda: any(f"check the filesystem of {folder}" in one["error"] for one in node.status()["resources"]))
        thaw(folder)
        kubelet.until_allocatable("example.com/thing", 2)
        until(lambda: node.status()["resources"][0]["error"] == "")


def test_the_record_of_an_attachment_goes_when_the_disk_that_refused_to_forget_it_answers_again(
    make_disk: Callable[[str], Path], node: ScratchNode, works: Path
) -> None:
    node.kill()
    records = make_disk("run/nodeplug/attachments")
    works.touch()
    node.start()
    with closing(new_netns()) as netns:  # which lives: else the daemon would end the attachments by itself
        for container in ("c1", "c2"):
            assert entrypoint(node, "ADD", container, netns.path).returncode == 0
        freeze(records)
        assert [entrypoint(node, "DEL", container).returncode for container in ("c1", "c2")] == [0, 0]
        thaw(records)
        until(lambda: not list(records.glob("*.json")))


POD, DATA = Pod(name="web", uid="uid-1"), FlexVolume("data", {"name": "data", "size": "16Mi"})


@pytest.fixture
def volumes(node: ScratchNode) -> Iterator[FlexCaller]:
    """A driver that stages, and beside its records nothing of it on the disk."""
    node.kill()
    node.configure(f'[plugins.loopfile]\n[plugins.loopfile.config]\ndirectory = "{node.root}/images"\n')
    node.start()
    yield FlexCaller(node.paths.flexvolume, node.root / "kubelet", "nodeplug/loopfile", timeout=100)
    for target in mounted(node):
        unmount(target, lazy=True)


def mounted(node: ScratchNode) -> list[str]:
    """Return where volumes are mounted; what was mounted last comes first."""
    places = (node.root / "kubelet", node.paths.run / "staging")
    return [
        mount.target
        for mount in reversed(mounts())
        if any(Path(mount.target).is_relative_to(place) for place in places)
    ]


def volume_records(node: ScratchNode) -> list[Path]:
    return list((node.paths.journal / "flexvolume").glob("*.json"))


def mounts_again(volumes: FlexCaller, volume: FlexVolume) -> bool:
    """Repeat a mount, as kubelet does: what hung in a disk ends a moment after the thaw."""
    with suppress(FlexFailure):
        return volumes.mount(POD, volume).is_mount()
    return False


@pytest.mark.whole
@pytest.mark.programs("e2fsck")
def test_a_pods_volume_goes_while_the_disk_of_its_records_is_frozen_and_they_go_when_it_answers(
    node: ScratchNode, disk: Path, volumes: FlexCaller
) -> None:
    volumes.mount(POD, DATA)
    assert mounted(node)
    assert volume_records(node)
    freeze(disk)
    for _ in range(2):  # kubelet may repeat it
        volumes.unmount(POD, "data")
    assert mounted(node) == []
    assert node.status()["volumes"] == []
    thaw(disk)
    until(lambda: volume_records(node) == [])
    volumes.mount_until(POD, DATA, 8)  # what was held back is written first, and a loaded disk may take its time
    assert volume_records(node)


@pytest.mark.programs("e2fsck")
def test_a_mount_fails_and_leaves_nothing_while_the_disk_of_the_records_is_frozen(
    node: ScratchNode, disk: Path, volumes: FlexCaller
) -> None:
    freeze(disk)
    with pytest.raises(FlexFailure, match="disk with the records of volumes does not answer"):
        volumes.mount(POD, DATA)
    assert mounted(node) == []
    thaw(disk)
    until(lambda: mounts_again(volumes, DATA))
    volumes.unmount(POD, "data")
    until(lambda: volume_records(node) == [])


@pytest.mark.whole
def test_the_first_mount_with_a_secret_fails_while_the_disk_of_the_records_is_frozen(
    node: ScratchNode, disk: Path, volumes: FlexCaller
) -> None:
    node.kill()
    node.configure('[plugins.stager]\nuses = "stager:Stager"\n')
    node.start()
    caller = FlexCaller(node.paths.flexvolume, node.root / "kubelet", "scratch/stager", timeout=100)
    secret = FlexVolume("data", {}, secrets={"token": b"correct-horse"})
    freeze(disk)
    with pytest.raises(FlexFailure, match="disk with the records of volumes does not answer"):
        caller.mount(POD, secret)
    thaw(disk)
    until(lambda: mounts_again(caller, secret))
