"""Entrypoints that an earlier version installed: ours, served, and not written anew without need."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

DRIVERS = "usr/libexec/kubernetes/kubelet-plugins/volume/exec"


def installed(left: Any) -> dict[str, tuple[bytes, int]]:
    """Return contents and inode of each installed file: what is written anew gets another inode."""
    record = json.loads((left.node.paths.state / "installed.json").read_text())
    return {name: (Path(name).read_bytes(), Path(name).stat().st_ino) for name in record["files"]}


def assert_nothing_changed_without_need(before: Any, after: Any) -> None:
    assert after.keys() == before.keys()
    for path, (data, inode) in after.items():
        if data == before[path][0]:  # else this version, or this interpreter, has another text
            assert inode == before[path][1], path


@pytest.fixture(params=["network", pytest.param("volumes", marks=pytest.mark.whole)])
def left(request: pytest.FixtureRequest, version: str) -> Any:
    return request.getfixturevalue(request.param)


def test_install_changes_nothing_without_need(left: Any) -> None:
    before = installed(left)
    done = left.node.run("install")
    assert done.returncode == 0, done.stderr
    assert_nothing_changed_without_need(before, installed(left))


def test_install_that_is_repeated_changes_nothing(left: Any) -> None:
    left.node.run("install")
    before = installed(left)
    assert left.node.run("install").returncode == 0
    assert installed(left) == before


def test_the_daemon_takes_them_for_its_own(left: Any) -> None:
    before = installed(left)
    left.node.start()
    status = left.told()
    assert status["ready"], status["reasons"]
    assert_nothing_changed_without_need(before, installed(left))


def test_uninstall_removes_exactly_them(network: Any) -> None:
    files = installed(network)
    done = network.node.run("uninstall")
    assert done.returncode == 0, done.stderr
    assert [path for path in files if Path(path).exists()] == []
    assert (network.root / "opt/cni/bin/example-ipam").exists()


def test_uninstall_leaves_the_drivers_whose_volumes_are_mounted(volumes: Any) -> None:
    files = installed(volumes)
    volumes.node.run("uninstall")
    assert [path for path in files if not Path(path).exists()] == []


def test_an_old_entrypoint_is_served(network: Any) -> None:
    path = network.root / "opt/cni/bin/nodeplug-bridge"
    old = path.read_bytes()
    network.node.start()
    path.write_bytes(old)  # as long as nobody has run `nodeplug install`
    network.runtime().check("c1")


def test_an_old_entrypoint_of_a_volume_driver_is_served(volumes: Any) -> None:
    path = volumes.root / DRIVERS / "nodeplug~tmpfs/tmpfs"
    old = path.read_bytes()
    volumes.node.start()
    path.write_bytes(old)
    target = volumes.root / "var/lib/kubelet/pods/pod-a/volumes/nodeplug~tmpfs/scratch"
    done = subprocess.run([str(path), "unmount", str(target)], capture_output=True, check=True)
    assert json.loads(done.stdout)["status"] == "Success"
