"""The stages that change settings, on stand-ins: that they go through, and that everything is put back."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.gpu.nvml.mock import MockNvml
from tests.gpu.proof.conftest import Proved
from tests.gpu.proof.machine import ROOT

pytestmark = pytest.mark.node
Prove = Callable[..., Proved]
EXCLUSIVE, MIG, RESET, UNPLUG, KERNEL = range(11, 16)


@pytest.fixture
def modes(driver: MockNvml, programs: Path) -> Path:
    """What nvidia-smi was asked, a line each."""
    asked = programs.parent / "modes"
    state = driver.path.with_name("nvml.state")
    paths = f"PYTHONPATH={ROOT}:{ROOT}/supervisor:{ROOT}/plugins"
    words = f'{sys.executable} -m tests.gpu.proof.smi {state} {asked} "$@"'
    (programs / "nvidia-smi").write_text(f"#!/bin/sh\n{paths} exec {words}\n")
    return asked


@pytest.mark.whole
def test_a_stage_that_changes_settings_is_skipped_unless_that_was_asked_for(prove: Prove, modes: Path) -> None:
    result = prove(EXCLUSIVE)
    assert (result.verdict, result.status) == ("skipped", 0)
    assert "--change-settings" in result.reason
    assert not modes.exists()


@pytest.mark.soak  # a card changes hands when nothing has held it for a minute
def test_the_compute_mode_is_set_and_put_back(prove: Prove, modes: Path) -> None:
    result = prove(EXCLUSIVE, "--change-settings")
    assert (result.verdict, result.reason) == ("passed", "")
    changes = [line for line in modes.read_text().splitlines() if line.startswith("-c ")]
    assert changes[0] == "-c EXCLUSIVE_PROCESS"
    assert changes[-1] == "-c DEFAULT"


@pytest.mark.soak
def test_the_compute_mode_is_put_back_behind_a_stage_that_fails(prove: Prove, modes: Path, driver: MockNvml) -> None:
    (driver.root.parent / "nvml.state").unlink()  # CUDA finds no card
    result = prove(EXCLUSIVE, "--change-settings")
    assert result.reason == "`start` of a client: cuInit returned 3"
    assert "-c EXCLUSIVE_PROCESS" in modes.read_text()
    assert modes.read_text().splitlines()[-1] == "-c DEFAULT"


@pytest.mark.soak
def test_a_card_is_divided_and_put_together(prove: Prove, modes: Path, driver: MockNvml) -> None:
    result = prove(MIG, "--change-settings")
    assert (result.verdict, result.reason) == ("passed", "")
    assert modes.read_text().splitlines()[-3:] == ["-dci", "-dgi", "-mig 0"]
    assert (driver.state.card[0].mig, driver.state.card[0].parts) == (0, 0)


@pytest.mark.soak
def test_a_card_that_is_divided_already_stays_so(prove: Prove, modes: Path, driver: MockNvml) -> None:
    driver.add_instance(driver.state.card[0])
    result = prove(MIG, "--change-settings")
    assert result.verdict == "skipped"
    assert "-mig 0" not in modes.read_text()


@pytest.mark.soak
def test_nodeplug_lets_go_of_a_card_for_its_reset(prove: Prove, modes: Path) -> None:
    result = prove(RESET, "--change-settings")
    assert (result.verdict, result.reason) == ("passed", "")
    assert "--gpu-reset" in modes.read_text()


@pytest.fixture
def bus(driver: MockNvml) -> Iterator[None]:
    """A PCI bus that does what is written to its files."""
    pci = driver.sysfs / "bus/pci"
    files = {pci / "devices/0000:3a:00.0/remove": 0, pci / "rescan": 1}
    ended = threading.Event()
    for file in files:
        file.touch()

    def listen() -> None:
        while not ended.is_set():
            for file, count in files.items():
                if file.read_text().strip() == "1":
                    file.write_text("")
                    driver.state.count = count
            time.sleep(0.02)

    thread = threading.Thread(target=listen)
    thread.start()
    yield
    ended.set()
    thread.join()


@pytest.mark.soak
def test_a_card_that_comes_back_to_the_bus_is_found(prove: Prove, modes: Path, bus: None, driver: MockNvml) -> None:
    result = prove(UNPLUG, "--change-settings")
    assert (result.verdict, result.reason) == ("passed", "")
    assert driver.state.count == 1


@pytest.mark.soak
def test_limits_of_the_kernel_are_skipped_where_there_are_none(prove: Prove, modes: Path) -> None:
    result = prove(KERNEL, "--change-settings")
    assert result.verdict == "skipped"
    assert "cgroup v2" in result.reason or "dmem" in result.reason
