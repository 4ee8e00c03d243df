"""Each stage on stand-ins for the driver's libraries: that it goes through, and that it can fail."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.gpu.nvml.mock import MockNvml
from tests.gpu.proof.conftest import Proved

pytestmark = pytest.mark.xdist_group("stages")  # several make and remove the folder that CUDA looks in

Prove = Callable[..., Proved]
PRECONDITIONS, SUITE, GRANTS, OVERUSE, MPS_LIMITS, MPS_EVASION, MPS_FAULTS, XIDS, DRIVER_PROCESS, CDI, LOAD = range(11)


def applied(prove: Prove) -> Proved:
    """Return how the CDI stage ended, where the kernel lets it begin."""
    result = prove(CDI)
    if "copied on write" in result.reason:
        pytest.skip(f"needs overlayfs: {result.reason}")
    return result


@pytest.mark.whole
def test_preconditions_are_written_down(prove: Prove) -> None:
    result = prove(PRECONDITIONS)
    assert (result.verdict, result.reason) == ("recorded", "")
    found = result.figures
    assert (found["card"], found["driver"]) == ("NVIDIA H100 80GB HBM3", "570.1")
    assert found["NVML functions missing"] == "none"
    assert "there is no nvidia-smi" in result.lacking


@pytest.mark.whole
def test_a_function_that_the_driver_lacks_is_named(prove: Prove, driver: MockNvml) -> None:
    driver.path.unlink()
    driver.install(["nvmlDeviceGetMemoryInfo_v2"])
    assert prove(PRECONDITIONS).figures["NVML functions missing"] == "nvmlDeviceGetMemoryInfo_v2"


@pytest.mark.whole
def test_the_suite_goes_through(prove: Prove) -> None:
    result = prove(SUITE)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["tests"] >= 10


@pytest.mark.whole
def test_a_structure_that_has_another_meaning_fails_the_suite(prove: Prove, driver: MockNvml) -> None:
    driver.fail("nvmlDeviceRegisterEvents", 25)
    assert prove(SUITE).verdict == "failed"


@pytest.mark.whole
def test_pods_use_what_they_are_given(prove: Prove) -> None:
    result = prove(GRANTS)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["pods that used their card"] == 16


@pytest.mark.whole
@pytest.mark.node
def test_overuse_is_seen_and_ended(prove: Prove) -> None:
    result = prove(OVERUSE)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["told by NVML beside the context"] == 4 << 30


@pytest.mark.whole
def test_xids_of_applications_take_no_card(prove: Prove) -> None:
    result = prove(XIDS)
    assert (result.verdict, result.reason) == ("passed", "")
    assert (result.figures["XID of address"], result.figures["XID of alignment"]) == (31, 13)


@pytest.mark.whole
def test_a_job_outlives_driver_processes(prove: Prove) -> None:
    result = prove(DRIVER_PROCESS)
    assert (result.verdict, result.reason) == ("passed", "")


@pytest.mark.whole
@pytest.mark.node
def test_limits_of_mps_are_measured(prove: Prove, programs: Path) -> None:
    result = prove(MPS_LIMITS)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["8 units: multiprocessors at 10 %"] == 13


@pytest.mark.whole
@pytest.mark.node
def test_a_limit_that_does_not_hold_fails_the_stage(
    prove: Prove, programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_MOCK_GENEROUS", "1")
    result = prove(MPS_LIMITS)
    assert (result.verdict, result.status) == ("failed", 1)
    assert "8 units: 8858370048 bytes were allocated beyond the limit of 8589934592" in result.reason


@pytest.mark.whole
@pytest.mark.node
def test_evasions_of_mps_are_written_down(prove: Prove, programs: Path) -> None:
    result = prove(MPS_EVASION)
    assert (result.verdict, result.reason) == ("recorded", "")
    assert "as granted: no more than its limit" in result.seen
    assert "variables unset: more than its limit" in result.seen
    assert "two processes of one container have 1.98 times its limit" in result.seen
    assert "user 1000 beside root's client: is served" in result.seen


@pytest.mark.whole
@pytest.mark.node
def test_faults_of_mps_are_survived(prove: Prove, programs: Path) -> None:
    result = prove(MPS_FAULTS)
    assert (result.verdict, result.reason) == ("passed", "")
    assert "a tenant that tries to delete the socket: Read-only file system" in result.seen
    assert "the control daemon was started again" in result.seen


@pytest.mark.whole
@pytest.mark.node
def test_a_spec_is_complete_for_cuda(prove: Prove) -> None:
    result = applied(prove)
    assert (result.verdict, result.reason) == ("passed", "")
    assert len([one for one in result.seen if one.endswith("libcuda.so.1 loads")]) == 3


@pytest.mark.whole
@pytest.mark.node
def test_a_library_that_is_not_in_the_spec_fails_the_stage(prove: Prove, driver: MockNvml) -> None:
    library, elsewhere = driver.path.with_name("libcuda.so.570.1"), driver.root / "opt"
    elsewhere.mkdir()
    library.rename(elsewhere / library.name)
    library.with_name("libcuda.so.1").unlink()
    library.with_name("libcuda.so.1").symlink_to(elsewhere / library.name)
    result = applied(prove)
    assert (result.verdict, result.status) == ("failed", 1)
    assert "libcuda.so.1: cannot open shared object file" in result.reason


@pytest.mark.whole
def test_kubelet_is_answered_beside_a_busy_card(prove: Prove) -> None:
    """How quickly is what the stage is for; here the machine may be busy with other tests."""
    result = prove(LOAD)
    slow = r"(idle|busy): [^;]* takes \d+\.\d ms[^;]*, at most [\d.]+"
    assert (result.verdict, result.reason) == ("passed", "") or re.fullmatch(rf"{slow}(; {slow})*", result.reason)
    assert result.figures["units"] > 10_000


@pytest.mark.whole
def test_stages_with_clients_are_skipped_by_name_without_libcuda(prove: Prove, driver: MockNvml) -> None:
    driver.path.with_name("libcuda.so.1").unlink()
    result = prove(XIDS)
    assert (result.verdict, result.status) == ("skipped", 0)
    assert result.reason.startswith("there is no libcuda.so.1 below")


@pytest.mark.whole
def test_stages_of_mps_are_skipped_by_name_where_the_driver_has_no_programs(prove: Prove) -> None:
    result = prove(MPS_LIMITS)
    assert (result.verdict, result.status) == ("skipped", 0)
    assert "nvidia-cuda-mps-control" in result.reason or "needs root" in result.reason
