"""What a container gets that is a client of MPS."""

from pathlib import Path

import pytest

from nodeplug import NotReady
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.mps.client import client
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record

CARD = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(9, 0))


@pytest.fixture(autouse=True)
def daemon(tmp_path: Path) -> None:
    Record(1, "", exclusive=True).write(Folders(tmp_path).record)


def shared_with(folder: Path) -> str:
    grant = client(Folders(folder), CARD, 4 << 30, 0.25, threads=True)
    (found,) = [mount.host_path for mount in grant.mounts if mount.container_path == "/dev/shm"]
    return found


def test_a_client_gets_limits_by_its_share(tmp_path: Path) -> None:
    grant = client(Folders(tmp_path), CARD, 4 << 30, 0.25, threads=True)
    assert grant.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
    assert grant.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "25"
    pipes = grant.mounts[0]
    assert (pipes.host_path, pipes.container_path) == (str(tmp_path / "pipe"), grant.env["CUDA_MPS_PIPE_DIRECTORY"])


def test_a_client_can_change_nothing_in_the_folder_of_the_socket_and_sees_no_log(tmp_path: Path) -> None:
    grant = client(Folders(tmp_path), CARD, 4 << 30, 0.25, threads=True)
    assert grant.mounts[0].read_only
    assert not [mount for mount in grant.mounts if "log" in mount.host_path]
    assert "CUDA_MPS_LOG_DIRECTORY" not in grant.env


def test_a_small_share_still_is_one_percent(tmp_path: Path) -> None:
    grant = client(Folders(tmp_path), CARD, 1 << 20, 0.001, threads=True)
    assert grant.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"


def test_multiprocessors_are_not_limited_where_that_is_switched_off(tmp_path: Path) -> None:
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client(Folders(tmp_path), CARD, 1 << 30, 0.5, threads=False).env


def test_a_card_before_volta_has_no_limits(tmp_path: Path) -> None:
    old = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(6, 1))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in client(Folders(tmp_path), old, 1 << 30, 0.5, threads=True).env


def test_a_client_of_a_daemon_of_a_version_before_gets_what_that_one_has(tmp_path: Path) -> None:
    Folders(tmp_path).record.write_text('{"pid": 1, "started": "1", "exclusive": true}')
    assert shared_with(tmp_path) == "/dev/shm"


def test_no_client_is_made_without_a_daemon(tmp_path: Path) -> None:
    Folders(tmp_path).record.unlink()
    with pytest.raises(NotReady, match="MPS control daemon does not run"):
        shared_with(tmp_path)


def test_a_plain_folder_is_never_given_to_a_client(tmp_path: Path) -> None:
    Folders(tmp_path).shm.mkdir()
    Record(1, "1", exclusive=True, shm=1 << 20).write(Folders(tmp_path).record)
    with pytest.raises(NotReady, match="no longer mounted"):
        shared_with(tmp_path)
