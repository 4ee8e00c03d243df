"""The fuse driver over CSI and a real daemon, as kubelet calls it."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.fuse_programs import programs, shared_folder

from nodeplug.pb import csi_v1_pb2 as pb
from nodeplug.testing.waiting import until

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_fuse")]
DRIVER = "fuse.nodeplug"
PATIENCE = 60
CONFIG = """
[plugins.fuse.config]
check_interval = "100ms"
[plugins.fuse.config.programs.files]
command = ["bindfs", "-f", "{source}", "{{mountpoint}}"]
secrets.key = {{ required = false }}
"""


@pytest.fixture
def source() -> Iterator[Path]:
    with shared_folder() as folder:
        yield folder


@pytest.fixture
def kubelet(start_kubelet: Callable[..., Any], source: Path) -> Iterator[Any]:
    made = start_kubelet(CONFIG.format(source=source))
    yield made
    for pid in programs(source):
        os.kill(pid, signal.SIGKILL)


def stats(kubelet: Any, path: Path) -> pb.NodeGetVolumeStatsResponse:
    request = pb.NodeGetVolumeStatsRequest(volume_id="files-1", volume_path=str(path))
    answer: pb.NodeGetVolumeStatsResponse = kubelet.driver(DRIVER).NodeGetVolumeStats(request, timeout=60)
    return answer


def serves(path: Path) -> bool:
    """Whether a pod reads its file; while a program is started again it does not."""
    with suppress(OSError):
        return (path / "hello").read_text() == "world"
    return False


def test_pods_share_a_volume_that_a_killed_daemon_and_its_successor_do_not_touch(kubelet: Any, source: Path) -> None:
    one, two = (kubelet.publish(DRIVER, "files-1", pod, {}) for pod in "ab")
    (pid,) = programs(source)
    with (one / "hello").open() as held:
        kubelet.node.kill()
        assert (two / "hello").read_text() == "world"
        kubelet.node.start()
        assert held.read() == "world"
    kubelet.publish(DRIVER, "files-1", "c", {})
    assert programs(source) == [pid]
    for pod in "abc":
        kubelet.unpublish(DRIVER, "files-1", pod)
    assert (kubelet.mounted(), programs(source)) == ([], [])


def test_a_plugin_process_that_is_killed_alone_leaves_programs_and_mounts_to_its_successor(
    start_kubelet: Callable[..., Any], source: Path
) -> None:
    kubelet = start_kubelet('[plugins.fuse]\nisolation = "process"\n' + CONFIG.format(source=source))

    def worker() -> int:
        (found,) = kubelet.node.status()["plugins"]
        return int((found["process"] or {}).get("pid", 0)) if found["state"] == "running" else 0

    one = kubelet.publish(DRIVER, "files-1", "a", {})
    (program,), former = programs(source), worker()
    mounted = kubelet.mounted()
    with (one / "hello").open() as held:
        os.kill(former, signal.SIGKILL)
        until(lambda: worker() not in {0, former}, PATIENCE)
        assert (programs(source), kubelet.mounted()) == ([program], mounted)
        assert held.read() == "world"
    two = kubelet.publish(DRIVER, "files-1", "b", {})
    assert (two / "hello").read_text() == "world"
    assert programs(source) == [program]
    os.kill(program, signal.SIGKILL)  # whose end is noticed by its present supervisor alone
    until(lambda: programs(source) not in ([], [program]), PATIENCE)
    until(lambda: serves(one) and serves(two), PATIENCE)
    for pod in "ab":
        kubelet.unpublish(DRIVER, "files-1", pod)
    assert (kubelet.mounted(), programs(source)) == ([], [])


@pytest.mark.whole
def test_the_condition_of_a_volume_says_that_its_program_hangs_and_its_pod_can_end(kubelet: Any, source: Path) -> None:
    target = kubelet.publish(DRIVER, "files-1", "a", {})
    until(lambda: stats(kubelet, target).usage, PATIENCE)
    assert not stats(kubelet, target).volume_condition.abnormal
    (pid,) = programs(source)
    os.kill(pid, signal.SIGSTOP)
    until(lambda: stats(kubelet, target).volume_condition.abnormal, PATIENCE)
    assert stats(kubelet, target).volume_condition.message == "program 'files' does not answer"
    with pytest.raises(grpc.RpcError, match="UNAVAILABLE"):
        kubelet.publish(DRIVER, "files-1", "b", {})
    kubelet.unpublish(DRIVER, "files-1", "b")
    kubelet.unpublish(DRIVER, "files-1", "a")
    assert (kubelet.mounted(), programs(source)) == ([], [])


def test_a_secret_is_nowhere_on_the_node_but_in_the_programs_memory(kubelet: Any, source: Path) -> None:
    kubelet.publish(DRIVER, "files-1", "a", {}, secrets={"key": "geheim-4711"})
    (pid,) = programs(source)
    assert Path(f"/proc/{pid}/root/tmp/secrets/key").read_text() == "geheim-4711"
    found = [
        path
        for path in kubelet.node.root.rglob("*")
        if "private" not in path.parts and path.is_file() and b"geheim" in path.read_bytes()
    ]
    assert found == []
    kubelet.unpublish(DRIVER, "files-1", "a")
    assert kubelet.mounted() == []


def test_a_program_of_a_pods_own_choice_is_refused_inline(kubelet: Any) -> None:
    with pytest.raises(grpc.RpcError, match="inline"):
        kubelet.publish(DRIVER, "csi-1", "a", {"csi.storage.k8s.io/ephemeral": "true"})
