"""Nodes for the real consumers to run on: a daemon in a folder, namespaces, and a whole node with a kubelet."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need
from tests.real.consumers import ControlPlane, Lab, PrivateNode, open_lab

from nodeplug.testing import Sandbox, ScratchNode, folders

HERE = Path(__file__).parent
REPOSITORY = HERE.parents[1]
PUBLISHED = REPOSITORY / "configs" / "cni" / "10-nodeplug.conflist"
RESOURCE = "example.com/widget"
PLUGINS = """
[plugins.bridge]
[plugins.host-local]
[plugins.portmap]
[plugins.bandwidth]
[plugins.sbr]
[plugins.tuning]
[plugins.firewall]
[plugins.loopback.config]
names = ["loopback"]
[plugins.loopfile]
[plugins.tmpfs]
[plugins.hold]
uses = "hold:Hold"
[[plugins.hostdev.config.resources]]
resource = "example.com/widget"
groups = [{{ nodes = [{{ path = "{folder}/dev/widget*", container_path = "/dev/{{name}}" }}] }}]
"""
SECTIONS = """
[plugins.fuse.config]
check_interval = "200ms"
[plugins.fuse.config.programs.files]
command = ["bindfs", "-f", "{source}", "{{mountpoint}}"]
restart_after_hang = "1s"
[plugins.image.config]
max_overlay = "64Mi"
roots = {{ main = {{ path = "{source}" }} }}
"""
LOOPFILE = {
    "flexVolume": {"driver": "nodeplug/loopfile", "fsType": "ext4", "options": {"name": "data", "size": "32Mi"}}
}
TMPFS = {"flexVolume": {"driver": "nodeplug/tmpfs", "options": {"size": "1Mi"}}}


@pytest.fixture(scope="session", autouse=True)
def _programs_of_a_node() -> None:
    """What consumers, reference plugins and tests of both execute on a node, and what names the builds of consumers."""
    need("awk", "ip", "ip6tables", "iptables", "iptables-legacy", "mount", "nft", "nsenter", "tc", "umount", "unshare")
    need("e2fsck", "mkfs.ext4", "resize2fs", "mkfs.xfs", "xfs_growfs")  # of volumes


@pytest.fixture
def consumer_netns(short_path: Path) -> Iterator[Path]:
    """A network namespace, at a path: the consumer's "host" network, which is not the daemon's."""
    with Sandbox(short_path / "host-netns") as sandbox:
        yield sandbox.path


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    """The daemon with the bundled network plugins, and its entrypoints installed."""
    root = short_path / "n"
    root.mkdir()
    scratch = ScratchNode(root, "[plugins.bridge]\n[plugins.host-local]\n[plugins.loopback]\n")
    with scratch:
        installed = scratch.run("install")
        assert installed.returncode == 0, installed.stderr
        yield scratch
    sys.stdout.write(scratch.log)  # shown when the test fails


@pytest.fixture(scope="session")
def make_private_node() -> Callable[..., PrivateNode]:
    """Make nodes in namespaces of their own, for containerd and kubelet; the folder is the daemon's root."""
    need("runc", "ip", "busybox")
    if not any(os.access(f"/sys/fs/cgroup/{tree}/cgroup.procs", os.W_OK) for tree in ("", "memory")):
        pytest.skip("needs control groups that can be written")

    def make(folder: Path, **options: Any) -> PrivateNode:
        folder.mkdir()
        return PrivateNode(folder, **options)

    return make


@pytest.fixture
def private_node(make_private_node: Callable[..., PrivateNode], short_path: Path) -> Iterator[PrivateNode]:
    """One of them, for one test."""
    with make_private_node(short_path / "n") as node:
        yield node


@contextmanager
def control_plane(make: Callable[..., PrivateNode], programs: Path, **options: Any) -> Iterator[ControlPlane]:
    """Start a control plane without a kubelet, on a private node of its own."""
    need("etcd")
    folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    try:
        with make(folder / "n") as node:
            (folder / "p").mkdir()
            with ControlPlane(node, folder / "p", programs, **options) as made:
                yield made
    finally:
        folders.remove(folder)


@pytest.fixture(scope="module")
def cluster(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[ControlPlane]:
    """A control plane with rights, for the tests of one file."""
    with control_plane(make_private_node, consumer("kubernetes"), authorization="Node,RBAC") as made:
        yield made


@pytest.fixture(scope="module")
def control(make_private_node: Callable[..., PrivateNode], consumer: Callable[[str], Path]) -> Iterator[ControlPlane]:
    """An API server and nothing else, for the tests of one file."""
    with control_plane(make_private_node, consumer("kubernetes"), controllers=False) as made:
        yield made


def cached(builder: str, *arguments: str) -> Path:
    """Return what a builder in `.ci` made earlier, or skip with its own words."""
    done = subprocess.run(
        [str(REPOSITORY / ".ci" / builder), "--cached", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(done.stderr.strip())
    return Path(done.stdout.strip())


@pytest.fixture(scope="session")
def consumer() -> Callable[[str], Path]:
    """The folder of a module's programs, such as `kubernetes` or `tools`, that `make consumers` built."""
    return lambda module: cached("build-consumers", module)


@pytest.fixture(scope="session", params=[pytest.param("old", marks=pytest.mark.matrix), "current"])
def generation(request: pytest.FixtureRequest) -> str:
    """`old`: Debian's containerd 1.6 with kubelet 1.20; `current`: today's, as `make consumers` builds them."""
    return str(request.param)


@pytest.fixture(scope="session")
def runtime(generation: str, consumer: Callable[[str], Path]) -> Path | None:
    """The folder of containerd, its shim and ctr; None: those of PATH."""
    if generation == "current":
        return consumer("containerd")
    need("containerd")
    return None


@pytest.fixture(scope="session")
def kubelet_program(generation: str, consumer: Callable[[str], Path]) -> Path:
    """The kubelet that `make kubelet` or `make consumers` built."""
    if generation == "current":
        return consumer("kubernetes") / "kubelet"
    return cached("build-kubelet")


def gateway_of(lab: Lab) -> str:
    """Return the default gateway of the bystander."""
    (gateway,) = [
        words[2]
        for words in map(str.split, lab.kubelet.execute("bystander", "/bin/ip", "route").splitlines())
        if words[0] == "default"
    ]
    return gateway


@pytest.fixture(scope="session")
def make_kubelet_lab(
    make_private_node: Callable[..., PrivateNode], runtime: Path | None, kubelet_program: Path
) -> Callable[..., AbstractContextManager[Lab]]:
    """Start whole nodes: two devices, the bundled plugins, and a kubelet that is warm.

    A first pod has made what stays on purpose, such as the bridge and the image of a volume. A bystander lives all the
    time, and its network works at the end.
    """

    @contextmanager
    def make(*conflists: Path, **more: Any) -> Iterator[Lab]:
        folder = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
        (folder / "dev").mkdir()
        for number in range(2):  # /dev/zero by another name
            os.mknod(folder / "dev" / f"widget{number}", 0o020666, os.makedev(1, 5))
        search = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
        env = {"PYTHONPATH": search, "HOLD_FOLDER": str(folder)}
        options: dict[str, Any] = {
            "resource": RESOURCE,
            "conflists": conflists,
            "env": env,
            "runtime": runtime,
            **more,
        }
        try:
            with make_private_node(folder / "n") as private:
                plugins = PLUGINS.format(folder=folder)
                with open_lab(private, folder, kubelet_program, plugins, **options) as lab:
                    lab.run("warm", volumes={"/data": LOOPFILE, "/memory": TMPFS})
                    lab.run("bystander")
                    lab.kubelet.residents.add("bystander")
                    lab.kubelet.clear()
                    before = lab.kubelet.container("bystander")
                    yield lab
                    assert lab.kubelet.container("bystander") == before
                    lab.kubelet.execute("bystander", "/bin/ping", "-c", "1", "-W", "2", gateway_of(lab))
        finally:
            log = folder / "n" / "daemon.log"
            sys.stdout.write(log.read_text() if log.exists() else "")  # shown when a test fails
            folders.remove(folder)

    return make


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    """A kubelet without an API server, for the tests of one file. A pod's name serves once."""
    with make_kubelet_lab(PUBLISHED) as lab:
        yield lab


@pytest.fixture
def difference(lab: Lab) -> Iterator[Callable[[], list[str]]]:
    """What came and went since the test began, its pods being removed."""
    before = lab.inventory()
    yield lambda: lab.since(before)
    lab.kubelet.clear()


@pytest.fixture(scope="session")
def volumes() -> dict[str, dict[str, Any]]:
    """By mount path, a volume of each bundled driver that holds data."""
    return {"/data": LOOPFILE, "/memory": TMPFS}


@pytest.fixture(scope="session")
def plugins_of() -> Callable[[Lab], str]:
    """The `[plugins.*]` tables of a kubelet lab, to be changed."""
    return lambda lab: PLUGINS.format(folder=lab.folder)


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    """A folder with a file, and an image of it."""
    need("bindfs", "mksquashfs")
    folder = Path(tempfile.mkdtemp(dir="/var/tmp"))  # a program has a /tmp of its own
    folder.chmod(0o755)
    (folder / "hello").write_text("world")
    subprocess.run(["mksquashfs", folder / "hello", folder / "model.squashfs", "-quiet", "-no-progress"], check=True)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def drivers(lab: Lab, source: Path, plugins_of: Callable[[Lab], str]) -> Iterator[None]:
    """Two more drivers, for the tests of one file."""

    def loaded() -> bool:
        return {"fuse", "image"} <= {one["name"] for one in lab.daemon.status()["plugins"] if one["state"] == "running"}

    plugins = plugins_of(lab)
    lab.daemon.configure(plugins + SECTIONS.format(source=source))
    lab.kubelet.wait_for("the new plugins", loaded)
    assert lab.daemon.run("install").returncode == 0
    yield
    lab.daemon.configure(plugins)
    lab.kubelet.wait_for("the old configuration", lambda: not loaded())
    assert lab.daemon.run("install").returncode == 0
