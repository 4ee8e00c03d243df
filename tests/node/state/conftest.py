"""Nodes on which an earlier version of the daemon was killed: its files laid down, and the kernel as it was.

The kernel's part is made here by hand from what was recorded, with pyroute2, raw messages and mount(2), so that no room
of today's plugins helps to find what an earlier one has made.
"""

import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from pyroute2 import IPRoute
from tests.gpu.mps.conftest import CONTROL, SMI
from tests.node.state import tree
from tests.programs import need

from nodeplug import Pod, bind, mount
from nodeplug.cni import nsid
from nodeplug.contract.journal import read_boot_id
from nodeplug.contract.netns import Netns
from nodeplug.install.scripts import default_interpreter
from nodeplug.pb import deviceplugin_v1beta1_pb2 as pb
from nodeplug.testing import BlockingKubelet, CniRuntime, FlexCaller, Sandbox, ScratchNode, folders, forked, rig
from nodeplug.testing.kubelet.admission import Container
from nodeplug.testing.kubelet.checkpoint import write_checkpoint
from nodeplug.testing.kubelet.ledger import NO_NODE, ContainerKey, DeviceAllocateInfo, Ledger
from nodeplug.testing.scratch_cni import run_in
from nodeplug.testing.waiting import until
from nodeplug_gpu.mps.record import recorded as recorded_pid
from nodeplug_gpu.mps.record import start_time
from nodeplug_volumes import filesystem, loopdev

OTHER_BOOT = "0a000000-1b00-4c00-8d00-2e0000000000"
NODAD = 0x02  # linux/if_addr.h
NETFILTER = 12  # linux/netlink.h


@dataclass
class Left:
    """One node as an earlier daemon left it; no daemon runs yet.

    Attributes:
        node: with the recorded configuration.
        recorded: the tree that was laid down.
        kernel: what was recorded of the kernel.
        pods: the network namespaces of running pods.
        mps: the control daemon of a card.
        unreadable: whether the daemon is to find records that it cannot read.
    """

    node: ScratchNode
    recorded: Path
    kernel: Any
    pods: dict[str, Sandbox] = field(default_factory=dict)
    mps: subprocess.Popen[bytes] | None = None
    unreadable: bool = False

    @property
    def root(self) -> Path:
        return self.node.root

    @property
    def addresses(self) -> Path:
        return self.root / "var/lib/cni/networks/pods"

    @property
    def journal(self) -> Path:
        return self.node.paths.journal

    def holders_of_addresses(self) -> set[str]:
        """Name the containers that hold an address, and `other` for a file that is nobody's."""
        files = [path for path in self.addresses.iterdir() if path.name[0] in "1f"]
        return {path.read_text().partition("\n")[0].strip() or "other" for path in files}

    def runtime(self, network: str = "pods") -> CniRuntime:
        """Make the runtime that added the pods: it has its cache on disk."""
        conflist = json.loads((self.root / f"etc/cni/net.d/{network}.conflist").read_text())
        return CniRuntime(conflist, [self.node.paths.cni_bin], cache_dir=self.root / "var/lib/cni")

    def caller(self, driver: str) -> FlexCaller:
        return FlexCaller(self.node.paths.flexvolume, self.root / "var/lib/kubelet", driver)

    def records(self, plugin: str = "flexvolume") -> list[str]:
        """Return the keys of a journal."""
        return sorted(json.loads(path.read_text())["key"] for path in (self.journal / plugin).glob("*.json"))

    def mounted(self) -> list[str]:
        """Name the mount points below the node's folder, but for namespaces."""
        found = [str(Path(one).relative_to(self.root)) for one in folders.mounted_below(self.root)]
        return sorted(one for one in found if not one.startswith("run/netns/"))

    def link_names(self) -> set[str]:
        with IPRoute() as route:
            return {dict(link["attrs"])["IFLA_IFNAME"] for link in route.get_links()}

    def told(self) -> Any:
        return self.node.status()


def pod_of(uid: str) -> Pod:
    return Pod(name=uid, namespace="default", uid=uid)


# --- laying down


@pytest.fixture(params=tree.versions())
def version(request: pytest.FixtureRequest) -> str:
    """Each version whose state is recorded."""
    return str(request.param)


@contextmanager
def a_folder() -> Iterator[Path]:
    """Make a folder in a network of its own; whatever is mounted there goes first."""
    search = os.pathsep.join([*forked.search_path(), str(tree.FIXTURES)])
    forked.prepare({**os.environ, "PYTHONPATH": search})
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    with ExitStack() as stack:
        stack.callback(folders.remove, root)
        stack.enter_context(rig.own_network())
        stack.callback(folders.unmount_below, root)
        yield root


@contextmanager
def laid_down(recorded: Path, root: Path, values: Mapping[str, str]) -> Iterator[Left]:
    """Lay a tree down; after the test nothing was set aside, and the daemon's log has no Traceback."""
    tree.lay(recorded, root, {**values, "PYTHON": str(default_interpreter())})
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", SMI)):
        program = root / "driver/usr/bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    recorded_text = (root / "etc/nodeplug/nodeplug.toml").read_text()
    # What whoever upgrades has to add: a plugin that mounts needs root.
    text = recorded_text.replace("[supervisor]\n", '[supervisor]\nplugin_user = "root"\n', 1)
    search = os.pathsep.join([*forked.search_path(), str(tree.FIXTURES)])
    node = ScratchNode(root, text, whole=True, env={"PYTHONPATH": search}, fork=True)
    left = Left(node, recorded, tree.read_kernel(recorded, {"ROOT": str(root)}))
    try:
        yield left
    finally:
        node.stop()
        for record in root.rglob("daemon.json"):  # of MPS; a daemon that was started outlives nodeplug
            if (pid := recorded_pid(record)) is not None:
                os.kill(pid, signal.SIGKILL)
    assert "Traceback" not in node.log
    if not left.unreadable:
        assert list(root.rglob("*.damaged")) == []
        assert "set aside" not in node.log


@pytest.fixture
def after_a_reboot(version: str) -> Callable[[str], Any]:
    """Lay down a part as it is found after a reboot: /run is empty, nothing is mounted, no link is there."""

    @contextmanager
    def lay(part: str) -> Iterator[Left]:
        names = tree.placeholders(tree.FIXTURES / version / part)
        values = {**dict.fromkeys(names, "1"), "BOOT_ID": OTHER_BOOT}
        with a_folder() as root, laid_down(tree.FIXTURES / version / part, root, values) as left:
            shutil.rmtree(root / "run")
            for path in (root / "var").rglob("*"):  # what is older than the boot is of another one
                os.utime(path, (1e9, 1e9))
            yield left

    return lay


# --- network


@pytest.fixture
def network(version: str) -> Iterator[Left]:
    """Running pods on bridges, and a DEL that nobody has done yet."""
    recorded = tree.FIXTURES / version / "network"
    with a_folder() as root, ExitStack() as stack:
        kernel = tree.read_kernel(recorded, {"ROOT": str(root)})
        bridges = {one["name"]: _make_bridge(one) for one in kernel["bridges"]}
        (root / "run/netns").mkdir(parents=True)
        pods: dict[str, Sandbox] = {}
        stack.callback(_close, pods)
        for name, pod in kernel["pods"].items():
            pods[name] = Sandbox(Path(pod["netns"]))
            _attach(pod, bridges[pod["bridge"]], pods[name])
        _send_to_nftables(kernel["nftables"])
        left = stack.enter_context(laid_down(recorded, root, _sightings(pods)))
        left.pods = pods
        yield left


def _close(pods: Mapping[str, Sandbox]) -> None:
    for pod in pods.values():
        pod.close()


def _make_bridge(recorded: Mapping[str, Any]) -> int:
    with IPRoute() as route:
        route.link("add", ifname=recorded["name"], kind="bridge", address=recorded["mac"])
        index: int = route.link_lookup(ifname=recorded["name"])[0]
        route.link("set", index=index, state="up")
        _give_addresses(route, index, recorded)
    return index


def _attach(pod: Mapping[str, Any], bridge: int, sandbox: Sandbox) -> None:
    host, inside = pod["host"], pod["inside"]
    peer = {"ifname": inside["name"], "address": inside["mac"], "net_ns_fd": sandbox.netns.fd}
    with IPRoute() as route:
        route.link("add", ifname=host["name"], kind="veth", address=host["mac"], master=bridge, peer=peer)
        index = route.link_lookup(ifname=host["name"])[0]
        route.link("set", index=index, ifalias=host["alias"], state="up")
    run_in(sandbox.netns, lambda: _configure(inside))


def _configure(inside: Mapping[str, Any]) -> None:
    with IPRoute() as route:
        index = route.link_lookup(ifname=inside["name"])[0]
        route.link("set", index=index, state="up")
        _give_addresses(route, index, inside)
        for target, length, gateway in inside["routes"]:
            dst = {} if target == "default" else {"dst": f"{target}/{length}"}
            family = socket.AF_INET6 if ":" in gateway else socket.AF_INET
            route.route("add", family=family, gateway=gateway, oif=index, **dst)


def _give_addresses(route: Any, index: int, recorded: Mapping[str, Any]) -> None:
    for address in recorded["addresses"]:
        host, _, length = address.partition("/")
        route.addr("add", index=index, address=host, prefixlen=int(length), flags=NODAD if ":" in host else 0)


def _send_to_nftables(messages: list[str]) -> None:
    """Send one recorded transaction as it was, and read the answers."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETFILTER) as peer:
        peer.bind((0, 0))
        peer.send(b"".join(bytes.fromhex(one) for one in messages))
        with suppress(BlockingIOError):
            while True:
                answer = peer.recv(1 << 16, socket.MSG_DONTWAIT)
                assert struct.unpack_from("=i", answer, 16)[0] == 0, "the kernel refuses a recorded message"


def _sightings(pods: Mapping[str, Sandbox]) -> dict[str, str]:
    """Fill in what the kernel tells of the namespaces; that of c3 is gone."""
    values = {"COOKIE:c3": str(1 << 40), "NSID:c3": "1048576", "MOMENT": str(time.monotonic())}
    for name, pod in pods.items():
        seen = nsid.sight(pod.netns)
        assert seen is not None
        values |= {f"COOKIE:{name}": str(seen.cookie), f"NSID:{name}": str(seen.nsid), "HOST_COOKIE": str(seen.host)}
    own = Netns.current()
    device, inode = own.identity
    own.close()
    return {**values, "HOST_DEV": str(device), "HOST_INO": str(inode), "BOOT_ID": read_boot_id()}


# --- volumes


@pytest.fixture
def volumes(version: str, has_loop_devices: None) -> Iterator[Left]:
    """Published volumes, and a mount that the daemon did not live to make."""
    need("mkfs.ext4")
    recorded = tree.FIXTURES / version / "volumes"
    with a_folder() as root, laid_down(recorded, root, {"BOOT_ID": read_boot_id()}) as left:
        for one in left.kernel["mounts"]:
            _mount(one)
        yield left


def _mount(one: Mapping[str, Any]) -> None:
    if one["kind"] == "bind":
        bind(one["from"], one["at"], read_only=one["read_only"])
    elif one["kind"] == "tmpfs":
        mount("tmpfs", one["at"], "tmpfs", options=["size=1M"], read_only=one["read_only"])
    else:
        image = Path(one["from"])
        image.touch(mode=0o600)
        os.truncate(image, one["bytes"])
        filesystem.make(image, one["kind"])
        with loopdev.attached(image) as loop:
            mount(loop.path, one["at"], one["kind"])


# --- devices


@pytest.fixture
def devices(version: str) -> Iterator[Left]:
    """Pods that hold devices, one of the cards with an MPS daemon that still runs; kubelet is not there yet."""
    recorded = tree.FIXTURES / version / "devices"
    with a_folder() as root, ExitStack() as stack:
        (daemon,) = recorded.glob("run/nodeplug/plugins/gpu/mps/*/daemon.json")
        mps = stack.enter_context(_mps_daemon(root / daemon.parent.relative_to(recorded) / "pipe", root / "mps"))
        values = {"MPS_PID": str(mps.pid), "MPS_STARTED": start_time(mps.pid), "BOOT_ID": read_boot_id()}
        left = stack.enter_context(laid_down(recorded, root, values))
        left.mps = mps
        for one in left.kernel["mounts"]:
            _mount(one)
        yield left


@contextmanager
def _mps_daemon(pipes: Path, program: Path) -> Iterator[subprocess.Popen[bytes]]:
    pipes.mkdir(parents=True)
    program.write_text(CONTROL)
    program.chmod(0o755)
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)}
    with subprocess.Popen([str(program), "-f"], env=env) as running:
        try:
            until((pipes / "control").exists)
            yield running
        finally:
            running.kill()


@contextmanager
def a_kubelet(left: Left, *without: str) -> Iterator[BlockingKubelet]:
    """Start kubelet as it starts beside running pods: with its checkpoint of before, where some may have ended."""
    ledger, held = Ledger(), [one for one in left.kernel["held"] if one["pod"] not in without]
    kubelet = BlockingKubelet(left.root / "var/lib/kubelet")
    admission = kubelet.stand_in._admission
    for one in held:
        key = ContainerKey("default", one["pod"], one["container"])
        nodes = {NO_NODE: frozenset(one["ids"])}
        ledger.entries[key, one["resource"]] = DeviceAllocateInfo(nodes, pb.ContainerAllocateResponse())
        admission.pods[key] = Container("app", {one["resource"]: len(one["ids"])})
        admission.ledger.kinds[key] = "app"
        admission.running.add(key)
    write_checkpoint(left.node.paths.device_plugins, ledger, {}, "boot")
    with kubelet:
        yield kubelet
