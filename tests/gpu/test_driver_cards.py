"""What a driver tells on any machine: the mock's, and a real one where there is one."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nodeplug_gpu.cards import Snapshot

Watch = Callable[..., Any]


@pytest.fixture
def watched(watch: Watch, machine: Any) -> Any:
    return watch(machine, hang_after=machine.hang_after)


def expected(machine: Any) -> list[tuple[str, str, int]]:
    """UUID, model and MiB of each card, from another source."""
    if machine.kind == "mock":
        cards = machine.mock.state.card[: machine.mock.state.count]
        return [(card.uuid.decode(), card.name.decode(), card.total >> 20) for card in cards]
    query = ["nvidia-smi", "--query-gpu=uuid,name,memory.total", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, check=True, capture_output=True, text=True).stdout.splitlines()
    parts = [[part.strip() for part in line.split(",")] for line in lines]
    return [(uuid, name, int(memory)) for uuid, name, memory in parts]


def test_every_card_is_there_with_its_name_and_memory(watched: Any, machine: Any) -> None:
    cards = watched.running().cards
    assert [(card.uuid, card.model, card.memory >> 20) for card in cards] == expected(machine)


def test_indices_count_from_zero(watched: Any) -> None:
    cards = watched.running().cards
    assert [card.index for card in cards] == list(range(len(cards)))


def test_addresses_are_those_of_sysfs(watched: Any, machine: Any) -> None:
    for card in watched.running().cards:
        assert re.fullmatch(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", card.pci)
        if machine.kind == "mock" or (machine.sysfs / "bus/pci/devices").is_dir():
            assert (machine.sysfs / "bus/pci/devices" / card.pci).is_dir()


def test_every_card_has_vitals_and_is_well(watched: Any) -> None:
    snapshot: Snapshot = watched.running()
    assert snapshot.telemetry.keys() == {card.uuid for card in snapshot.cards}
    for card in snapshot.cards:
        telemetry = snapshot.telemetry[card.uuid]
        assert (telemetry.error, telemetry.error_code) == ("", 0)
        assert telemetry.used is None or 0 <= telemetry.used <= card.memory


def test_the_driver_says_its_version_and_leaves_nothing_out(watched: Any) -> None:
    snapshot = watched.running()
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", snapshot.driver_version)
    assert (snapshot.reason, snapshot.unreadable) == ("", ())


def test_compute_capability_is_known(watched: Any) -> None:
    assert all(card.compute_capability >= (3, 0) for card in watched.running().cards)


def test_a_poll_that_is_requested_does_not_wait_for_the_interval(watch: Watch, machine: Any) -> None:
    watched = watch(machine, poll=3600.0, hang_after=machine.hang_after)
    before = watched.running().taken
    watched.driver.poll()
    watched.until(lambda snapshot: snapshot.taken > before)


def test_a_killed_process_is_replaced_and_shows_the_same_cards(watched: Any) -> None:
    before = watched.running()
    os.kill(watched.driver.pid, signal.SIGKILL)
    after = watched.until(lambda snapshot: snapshot.state == "running" and snapshot.generation > before.generation)
    assert after.cards == before.cards


def test_while_the_process_is_replaced_its_cards_are_kept_with_the_reason(watched: Any) -> None:
    before = watched.running()
    os.kill(watched.driver.pid, signal.SIGKILL)
    watched.until(lambda snapshot: snapshot.generation > before.generation)
    failed = next(snapshot for snapshot in watched.snapshots if snapshot.state == "failed")
    assert failed.cards == before.cards
    assert (failed.processes, failed.telemetry) == ((), {})
    assert failed.reason == "the driver process was ended by SIGKILL"


def test_a_process_that_stands_still_is_replaced(watch: Watch, machine: Any) -> None:
    watched = watch(machine, poll=3600.0, hang_after=1.0 if machine.kind == "mock" else 5.0)
    began = watched.running()
    watched.driver.poll()  # what answers it has sent a heartbeat; one that has sent none is given longer
    before = watched.until(lambda snapshot: snapshot.taken > began.taken)
    os.kill(watched.driver.pid, signal.SIGSTOP)
    watched.until(lambda snapshot: snapshot.state == "running" and snapshot.generation > before.generation)
    assert any("no heartbeat" in snapshot.reason for snapshot in watched.snapshots)


def test_stop_leaves_no_process_and_no_thread_behind(watched: Any) -> None:
    watched.running()
    pid = watched.driver.pid
    watched.driver.stop()
    assert not Path(f"/proc/{pid}").exists()
    assert watched.driver.unkillable == 0


def test_stop_may_come_twice_and_without_a_start(watched: Any) -> None:
    watched.driver.stop()
    watched.driver.stop()
    watched.driver.start(lambda snapshot, events: None)
    assert watched.driver.pid == 0


def test_the_daemon_never_imports_pynvml() -> None:
    code = "import sys, nodeplug_gpu.plugin; sys.exit('pynvml' in sys.modules)"
    search = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": search})


def test_the_driver_process_imports_nothing_of_the_daemon() -> None:
    code = "import sys, nodeplug_gpu.driver.child; sys.exit(bool({'grpc', 'pydantic', 'nodeplug'} & set(sys.modules)))"
    search = os.pathsep.join(sys.path)
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": search})


def test_an_observer_that_fails_is_told_again(machine: Any, watch: Watch, caplog: pytest.LogCaptureFixture) -> None:
    watched = watch(machine, hang_after=machine.hang_after)
    first = watched.running()
    told: list[Snapshot] = []

    def observe(snapshot: Snapshot, events: Any) -> None:
        told.append(snapshot)
        raise RuntimeError("not today")

    watched.driver._publisher.observer = observe
    os.kill(watched.driver.pid, signal.SIGKILL)
    watched.until(lambda snapshot: snapshot.state == "running" and snapshot.generation > first.generation)
    assert len(told) >= 2
    assert "a change of the cards could not be processed" in caplog.text
