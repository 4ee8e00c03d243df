"""A daemon takes the place of another one while pods with CSI volumes come and go: sockets stay, no pod is lost.

The API server is a stand-in in memory; kubelet, containerd and the daemon are the real ones.
"""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest
from tests.real.consumers import Lab
from tests.real.consumers.csi_objects import announce, claim, drivers_of

pytestmark = pytest.mark.soak
DRIVERS = {"loopfile.nodeplug", "tmpfs.nodeplug"}
INLINE = {"csi": {"driver": "tmpfs.nodeplug", "volumeAttributes": {"size": "8Mi"}}}
PUBLISHED = Path(__file__).parents[2] / "configs" / "cni" / "10-nodeplug.conflist"
PODS = 2
"""That each of two follow each other."""


@pytest.fixture(scope="module")
def lab(make_kubelet_lab: Callable[..., AbstractContextManager[Lab]]) -> Iterator[Lab]:
    with make_kubelet_lab(PUBLISHED, with_api=True) as made:
        for name in sorted(DRIVERS):
            announce(made, name)
        yield made


@pytest.fixture
def volumes(lab: Lab) -> dict[str, dict[str, Any]]:
    """An inline volume, and one of a claim with a file."""
    assert lab.api is not None
    options = {"name": "shared", "size": "16Mi"}
    flexible = {"flexVolume": {"driver": "nodeplug/loopfile", "options": options}}
    lab.run("maker", "echo kept > /data/file; sync", volumes={"/data": flexible})
    lab.kubelet.drop("maker")
    return {"/memory": INLINE, "/data": claim(lab.api, "loopfile.nodeplug", "shared", "shared", {"name": "shared"})}


def live(lab: Lab, name: str, volumes: dict[str, dict[str, Any]]) -> list[str]:
    """Have pods one after the other; return what each has read of the claim's volume."""
    read = []
    for number in range(PODS):
        pod = f"{name}{number}"
        lab.run(pod, "echo mine > /memory/file", volumes=volumes)
        read.append(lab.kubelet.execute(pod, "/bin/cat", "/data/file", "/memory/file"))
        lab.kubelet.drop(pod)
    return read


def registered(lab: Lab) -> set[str]:
    """The drivers that kubelet has registered with this daemon, the successor: the same path with a new socket."""
    return {one["driver"] for one in lab.daemon.status()["csi"] if one["registered"]}


def absent(lab: Lab, over: threading.Event) -> set[Path]:
    """Look until it is over, and return the sockets that were once not there."""
    registrations = lab.daemon.paths.plugins_registry
    calls = registrations.parent / "plugins"
    paths = {path for name in DRIVERS for path in (registrations / f"{name}-reg.sock", calls / name / "csi.sock")}
    found = set[Path]()
    while not over.wait(0.005):
        found |= {path for path in paths if not path.is_socket()}
    return found


def test_pods_come_and_go_with_their_volumes_while_daemons_follow_each_other(
    lab: Lab, volumes: dict[str, dict[str, Any]], difference: Callable[[], list[str]]
) -> None:
    lab.run("lasting", "echo kept > /memory/file", volumes=volumes)
    container, over, replacements = lab.kubelet.container("lasting"), threading.Event(), 0
    with lab.successors() as replace, ThreadPoolExecutor(3) as beside:
        missed = beside.submit(absent, lab, over)
        try:
            lives = [beside.submit(live, lab, name, volumes) for name in ("one", "two")]
            while replacements < 3 or not all(one.done() for one in lives):
                replace()
                replacements += 1
                lab.kubelet.wait_for("its word on both drivers", lambda: registered(lab) == drivers_of(lab) == DRIVERS)
        finally:
            over.set()
        assert [one.result() for one in lives] == [["kept\nmine\n"] * PODS] * 2
        assert missed.result() == set()
        assert lab.kubelet.container("lasting") == container
        assert lab.kubelet.execute("lasting", "/bin/cat", "/memory/file", "/data/file") == "kept\nkept\n"
        assert difference() == []
