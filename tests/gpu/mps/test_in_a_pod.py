"""nodeplug in a mount namespace of its own, as in a pod: whether the node sees what is mounted for MPS clients."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeplug import mount, mounted_at
from nodeplug.testing import folders
from nodeplug_gpu.cards import Uuid
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import recorded

pytestmark = [pytest.mark.node, pytest.mark.programs("mount", "unshare")]

LIFE = """
import logging, sys, time
from dataclasses import replace
from pathlib import Path
from nodeplug.testing import host
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.mps.cards import MpsDaemons
logging.basicConfig(stream=sys.stdout, format="%(message)s")
run, driver = map(Path, sys.argv[1:])
daemons = MpsDaemons(replace(host(run), run_dir=run), driver, lambda: None)
card = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30)
daemons.reconcile({card.uuid: (card, Mps())})
while daemons.reason(card.uuid):
    time.sleep(0.02)
print("serves", flush=True)
time.sleep(600)
"""


@pytest.fixture
def run_folder(short_path: Path) -> Iterator[Path]:
    """A run folder that the node shares with its pods."""
    mount("tmpfs", str(short_path), "tmpfs")
    subprocess.run(["mount", "--make-shared", short_path], check=True)
    yield short_path
    for record in short_path.rglob("daemon.json"):
        if (pid := recorded(record)) is not None:
            os.kill(pid, signal.SIGKILL)
    folders.unmount_below(short_path)


def start(run_folder: Path, driver_root: Path, *namespaces: str) -> tuple[subprocess.Popen[str], str]:
    """Start MPS as a process in other namespaces; return it with what it said until it served."""
    command = ["unshare", "--mount", *namespaces, sys.executable, "-c", LIFE, str(run_folder), str(driver_root)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    said = ""
    while not said.endswith("serves\n"):
        line = process.stdout.readline()
        assert line, f"it ended: {said}"
        said += line
    return process, said


@pytest.fixture
def pod(run_folder: Path, driver_root: Path) -> Iterator[Callable[..., str]]:
    started: list[subprocess.Popen[str]] = []

    def begin(*namespaces: str) -> str:
        process, said = start(run_folder, driver_root, *namespaces)
        started.append(process)
        return said

    yield begin
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.communicate()


@pytest.mark.whole
def test_the_node_sees_what_is_mounted_in_a_pod_with_a_shared_run_folder(
    pod: Callable[..., str], run_folder: Path
) -> None:
    pod("--propagation", "unchanged")
    found = Folders.of(run_folder, Uuid("GPU-1"))
    assert mounted_at(str(found.shm)) is not None
    (found.shm / "of-a-client").touch()
    assert Path(f"/proc/{recorded(found.record)}/root/dev/shm/of-a-client").exists()


@pytest.mark.whole
def test_a_pod_whose_mounts_the_node_does_not_see_says_what_it_needs(pod: Callable[..., str], run_folder: Path) -> None:
    said = pod("--propagation", "slave")
    assert "the node does not see what is mounted on" in said
    assert "mountPropagation: Bidirectional" in said
    assert mounted_at(str(Folders.of(run_folder, Uuid("GPU-1")).shm)) is None


def test_nodeplug_in_the_namespace_of_the_first_process_warns_of_nothing(pod: Callable[..., str]) -> None:
    assert pod("--pid", "--fork", "--kill-child", "--mount-proc") == "serves\n"
