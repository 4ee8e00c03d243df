"""Volumes through the whole road: kubelet's stand-in, the installed scripts, the socket, the daemon, the plugins."""

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.programs import need

from nodeplug import Pod, mounted_at, mounts, unmount
from nodeplug.testing import FlexCaller, FlexFailure, FlexVolume, ScratchNode, folders
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.node
needs_loop_devices = pytest.mark.usefixtures("has_loop_devices")
makes_images = pytest.mark.programs("e2fsck", "mkfs.ext4")
PLUGINS = """
[plugins.tmpfs]
[plugins.loopfile]
[plugins.loopfile.config]
directory = "{root}/images"
[plugins.hostdir]
[plugins.hostdir.config.roots.main]
path = "{root}/shared"
"""
POD, OTHER = Pod(name="web", uid="uid-1"), Pod(name="job", uid="uid-2")
DATA = FlexVolume("data", {"name": "data", "size": "16Mi"})
CACHE = FlexVolume("cache", {"size": "1Mi"}, secrets={"token": b"correct-horse"})


@pytest.fixture(scope="module")
def node() -> Iterator[ScratchNode]:
    """One daemon for all tests: each leaves it as it was."""
    root = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp")).resolve()
    (root / "shared").mkdir()
    # Compiled entrypoints, which do the same, have tests of their own in tests/node/exec_road.
    supervisor = 'listen = ""\nnative_entrypoints = false\n'
    scratch = ScratchNode(root, PLUGINS.format(root=root), supervisor=supervisor, fork=True)
    try:
        with scratch:
            installed = scratch.run("install")
            assert installed.returncode == 0, installed.stderr
            yield scratch
    finally:
        for target in reversed([mount.target for mount in mounts() if Path(mount.target).is_relative_to(root)]):
            unmount(target, lazy=True)
        folders.remove(root)


@pytest.fixture
def caller(node: ScratchNode) -> Any:
    return lambda driver: FlexCaller(node.paths.flexvolume, node.root / "kubelet", f"nodeplug/{driver}", timeout=60)


def mounted(node: ScratchNode) -> list[str]:
    return [mount.target for mount in mounts() if Path(mount.target).is_relative_to(node.root)]


@pytest.mark.parametrize(
    ("driver", "volume"),
    [("tmpfs", CACHE), ("loopfile", DATA), ("hostdir", FlexVolume("shared", {"root": "main"}))],
)
def test_a_pods_volume_comes_and_goes(
    request: pytest.FixtureRequest, node: ScratchNode, caller: Any, driver: str, volume: FlexVolume
) -> None:
    if driver == "loopfile":
        need("e2fsck", "mkfs.ext4")
        request.getfixturevalue("has_loop_devices")
    kubelet = caller(driver)
    target = kubelet.mount(POD, volume)
    assert mounted_at(str(target)) is not None
    kubelet.unmount(POD, volume.name)
    assert mounted(node) == []


def test_init_says_that_no_attach_is_needed(caller: Any) -> None:
    assert caller("loopfile").capabilities["attach"] is False


@needs_loop_devices
@makes_images
def test_a_volume_outlives_a_killed_daemon_and_is_unmounted_by_the_next(node: ScratchNode, caller: Any) -> None:
    kubelet = caller("loopfile")
    target = kubelet.mount(POD, DATA)
    node.kill()
    (target / "x").write_text("written while no daemon runs")
    with pytest.raises(FlexFailure, match="not running"):
        kubelet.unmount(POD, "data")
    node.start()
    kubelet.unmount(POD, "data")
    assert mounted(node) == []
    assert (kubelet.mount(OTHER, DATA) / "x").exists()
    kubelet.unmount(OTHER, "data")


@needs_loop_devices
@makes_images
def test_many_pods_at_once_get_their_volumes(node: ScratchNode, caller: Any) -> None:
    kubelet = caller("loopfile")
    kubelet.probe()
    pods = [Pod(uid=f"uid-{number}") for number in range(8)]
    with ThreadPoolExecutor(8) as pool:
        targets = list(pool.map(lambda pod: kubelet.mount(pod, DATA), pods))
        assert all(mounted_at(str(target)) for target in targets)
        list(pool.map(lambda pod: kubelet.unmount(pod, "data"), pods))
    assert mounted(node) == []


def test_no_secret_reaches_the_daemons_log_or_state(node: ScratchNode, caller: Any) -> None:
    kubelet = caller("tmpfs")
    kubelet.mount(POD, CACHE)
    with pytest.raises(FlexFailure):
        kubelet.mount(OTHER, FlexVolume("cache", {"size": "none"}, secrets=CACHE.secrets))
    written = [path for path in node.root.rglob("*") if path.is_file()]
    assert node.log_path in written
    for path in written:
        content = path.read_bytes()
        assert b"correct-horse" not in content
        assert b"Y29ycmVjdC1ob3JzZQ==" not in content
    kubelet.unmount(POD, "cache")


def until_serving(node: ScratchNode, *names: str) -> None:
    """Wait until a changed configuration is in force."""
    wanted = dict.fromkeys(names, "running")
    until(lambda: {plugin["name"]: plugin["state"] for plugin in node.status()["plugins"]} == wanted)


@needs_loop_devices
@makes_images
def test_pods_of_a_plugin_that_was_taken_out_end_and_the_rest_waits_for_it(node: ScratchNode, caller: Any) -> None:
    kubelet = caller("loopfile")
    kubelet.mount(POD, DATA)
    node.configure("[plugins.tmpfs]\n")
    until_serving(node, "tmpfs")
    kubelet.unmount(POD, DATA.name)
    assert [Path(path).is_relative_to(kubelet.kubelet_root) for path in mounted(node)] == [False]
    node.configure(PLUGINS.format(root=node.root))
    until_serving(node, "tmpfs", "loopfile", "hostdir")
    kubelet.mount(OTHER, FlexVolume("other", {"name": "other", "size": "16Mi"}))
    kubelet.unmount(OTHER, "other")
    assert mounted(node) == []
