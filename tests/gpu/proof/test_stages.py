"""Each stage on stand-ins for the driver's libraries: that it goes through, and that it can fail."""

from collections.abc import Callable

import pytest
from tests.gpu.conftest import MockNvml
from tests.gpu.proof.conftest import Proved

Prove = Callable[..., Proved]
PRECONDITIONS, SUITE, GRANTS, OVERUSE, MPS_LIMITS, MPS_EVASION, MPS_FAULTS, XIDS, DRIVER_PROCESS, CDI, LOAD = range(11)


def test_preconditions_are_written_down(prove: Prove) -> None:
    result = prove(PRECONDITIONS)
    assert (result.verdict, result.reason) == ("recorded", "")
    found = result.figures
    assert (found["card"], found["driver"]) == ("NVIDIA H100 80GB HBM3", "570.1")
    assert found["NVML functions missing"] == "none"
    assert "there is no nvidia-smi" in result.lacking


def test_a_function_that_the_driver_lacks_is_named(prove: Prove, driver: MockNvml) -> None:
    driver.path.unlink()
    driver.install(["nvmlDeviceGetMemoryInfo_v2"])
    assert prove(PRECONDITIONS).figures["NVML functions missing"] == "nvmlDeviceGetMemoryInfo_v2"


def test_the_suite_goes_through(prove: Prove) -> None:
    result = prove(SUITE)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["tests"] >= 10


def test_a_structure_that_has_another_meaning_fails_the_suite(prove: Prove, driver: MockNvml) -> None:
    driver.fail("nvmlDeviceRegisterEvents", 25)
    assert prove(SUITE).verdict == "failed"


def test_pods_use_what_they_are_given(prove: Prove) -> None:
    result = prove(GRANTS)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["pods that used their card"] == 16


@pytest.mark.node
def test_overuse_is_seen_and_ended(prove: Prove) -> None:
    result = prove(OVERUSE)
    assert (result.verdict, result.reason) == ("passed", "")
    assert result.figures["told by NVML beside the context"] == 4 << 30


def test_xids_of_applications_take_no_card(prove: Prove) -> None:
    result = prove(XIDS)
    assert (result.verdict, result.reason) == ("passed", "")
    assert (result.figures["XID of address"], result.figures["XID of alignment"]) == (31, 13)


def test_a_job_outlives_driver_processes(prove: Prove) -> None:
    result = prove(DRIVER_PROCESS)
    assert (result.verdict, result.reason) == ("passed", "")
