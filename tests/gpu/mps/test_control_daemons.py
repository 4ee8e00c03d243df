"""MPS control daemons: started, watched, found again, ended. The program stands in, the processes are real."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.ended import has_ended

from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.mps.cards import MpsDaemons
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import recorded

pytestmark = pytest.mark.node

CARD = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(9, 0))
OTHER = Card(Uuid("GPU-2"), 1, 1, "X", 16 << 30, compute_capability=(9, 0))


def wanted(*cards: Card) -> dict[Uuid, tuple[Card, Mps]]:
    return {card.uuid: (card, Mps()) for card in cards}


def pid_of(short_path: Path, card: Card) -> int:
    pid = recorded(Folders.of(short_path, card.uuid).record)
    assert pid is not None
    return pid


def test_a_daemon_is_started_for_its_card_alone(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    assert one.reason(CARD.uuid)
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert (Folders.of(short_path, CARD.uuid).pipes / "control").read_text().strip() == CARD.uuid


def test_each_card_has_a_daemon_of_its_own(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    one.reconcile(wanted(CARD, OTHER))
    until(lambda: not one.reason(CARD.uuid) and not one.reason(OTHER.uuid))
    assert pid_of(short_path, CARD) != pid_of(short_path, OTHER)


def test_a_daemon_that_dies_is_started_again(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    first = pid_of(short_path, CARD)
    os.kill(first, signal.SIGKILL)
    until(lambda: one.reason(CARD.uuid))
    until(lambda: not one.reason(CARD.uuid) and pid_of(short_path, CARD) != first)


def test_the_end_of_nodeplug_leaves_the_daemon_to_its_clients_and_the_next_start_finds_it(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    assert not has_ended(pid)
    two = daemons()
    two.reconcile(wanted(CARD))
    until(lambda: not two.reason(CARD.uuid))
    assert pid_of(short_path, CARD) == pid


def test_a_card_that_is_no_longer_shared_loses_its_daemon(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    one.reconcile(wanted(CARD, OTHER))
    until(lambda: not one.reason(CARD.uuid) and not one.reason(OTHER.uuid))
    gone, stays = pid_of(short_path, CARD), pid_of(short_path, OTHER)
    one.reconcile(wanted(OTHER))
    until(lambda: has_ended(gone))
    assert not has_ended(stays)
    assert not one.reason(OTHER.uuid)


def test_a_daemon_of_an_earlier_configuration_is_ended_at_the_next_start(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    daemons().reconcile({})
    until(lambda: has_ended(pid))


def test_a_daemon_that_cannot_start_is_told_and_tried_again(
    daemons: Callable[[], MpsDaemons], driver_root: Path
) -> None:
    broken = driver_root / "usr" / "bin" / "broken"
    broken.touch()
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: "ended" in one.reason(CARD.uuid))
    broken.unlink()
    until(lambda: not one.reason(CARD.uuid))


def test_a_missing_program_is_told_by_its_name(daemons: Callable[[], MpsDaemons], driver_root: Path) -> None:
    one = daemons()
    one.reconcile({CARD.uuid: (CARD, Mps(command="/nowhere/nvidia-cuda-mps-control"))})
    until(lambda: "/nowhere/nvidia-cuda-mps-control" in one.reason(CARD.uuid))


def test_a_pid_that_is_another_process_by_now_is_not_taken_for_the_daemon(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    folders = Folders.of(short_path, CARD.uuid)
    folders.root.mkdir(parents=True)
    bystander = subprocess.Popen(["sleep", "600"])
    folders.record.write_text(f'{{"pid": {bystander.pid}, "started": "1"}}')
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert pid_of(short_path, CARD) != bystander.pid
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_the_card_is_for_clients_alone_while_its_daemon_runs(
    daemons: Callable[[], MpsDaemons], driver_root: Path
) -> None:
    modes = driver_root / "usr" / "bin" / "modes"
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert modes.read_text().splitlines() == ["-i GPU-1 -c EXCLUSIVE_PROCESS"]
    one.reconcile({})
    until(lambda: modes.read_text().splitlines()[-1] == "-i GPU-1 -c DEFAULT")


def test_a_daemon_of_an_earlier_configuration_gives_back_its_card_for_all(
    daemons: Callable[[], MpsDaemons], short_path: Path, driver_root: Path
) -> None:
    modes = driver_root / "usr" / "bin" / "modes"
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    one.stop()
    os.kill(pid_of(short_path, CARD), signal.SIGKILL)
    later = daemons()
    assert later.still_running(CARD.uuid)
    later.reconcile({}, cards=[CARD])
    until(lambda: modes.read_text().splitlines()[-1] == "-i GPU-1 -c DEFAULT")
    until(lambda: not Folders.of(short_path, CARD.uuid).record.exists())

    def free() -> bool:
        later.reconcile({})  # as at each look: the thread ends a moment after the record is gone
        return not later.still_running(CARD.uuid)

    until(free)


def test_the_daemon_of_a_card_that_containers_hold_goes_on_until_they_are_gone(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    later = daemons()
    for _ in range(2):
        later.reconcile({}, held=lambda _: True, cards=[CARD])
    assert (
        later.still_running(CARD.uuid)
        == "its MPS control daemon still runs; it is stopped when no container holds the card"
    )
    assert not has_ended(pid)
    later.reconcile({}, cards=[CARD])
    until(lambda: has_ended(pid))


def test_a_card_that_is_shared_by_mps_again_waits_for_the_end_of_its_former_daemon(
    daemons: Callable[[], MpsDaemons], short_path: Path, driver_root: Path
) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    first = pid_of(short_path, CARD)
    one.reconcile({})
    one.reconcile(wanted(CARD))
    assert one.reason(CARD.uuid) == "its former MPS control daemon is stopping"

    def serves() -> bool:
        one.reconcile(wanted(CARD))
        return not one.reason(CARD.uuid)

    until(serves)
    assert pid_of(short_path, CARD) != first
    modes = (driver_root / "usr" / "bin" / "modes").read_text().splitlines()
    assert [mode.rpartition(" ")[2] for mode in modes] == ["EXCLUSIVE_PROCESS", "DEFAULT", "EXCLUSIVE_PROCESS"]


def test_the_mode_of_a_card_follows_a_changed_configuration(
    daemons: Callable[[], MpsDaemons], short_path: Path, driver_root: Path
) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    daemons().reconcile({CARD.uuid: (CARD, Mps(exclusive_process=False))})
    until(lambda: (driver_root / "usr/bin/modes").read_text().splitlines()[-1] == "-i GPU-1 -c DEFAULT")
    assert pid_of(short_path, CARD) == pid


def test_a_daemon_finds_the_libraries_of_a_driver_that_is_not_the_nodes_and_no_other(
    daemons: Callable[[], MpsDaemons], driver_root: Path
) -> None:
    folder = driver_root / "usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libnvidia-ml.so.1", "libc.so.6"):
        (folder / name).touch()
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    found = Path((driver_root / "usr/bin/libraries").read_text().strip())
    assert {path.name: path.resolve() for path in found.iterdir()} == {
        name: folder / name for name in ("libcuda.so.1", "libnvidia-ml.so.1")
    }


def test_a_run_folder_whose_sockets_would_have_too_long_a_name_is_told(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    object.__setattr__(one.host, "run_dir", short_path / ("x" * 100))
    one.reconcile(wanted(CARD))
    until(lambda: "longer than 107 bytes" in one.reason(CARD.uuid))


def test_no_other_user_may_write_to_the_folders_of_a_daemon(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    folders = Folders.of(short_path, CARD.uuid)
    folders.pipes.mkdir(parents=True)
    folders.pipes.chmod(0o777)  # as a version before left it
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert (folders.pipes.stat().st_mode & 0o777, folders.logs.stat().st_mode & 0o777) == (0o755, 0o700)


def test_a_socket_without_an_answer_is_not_enough(daemons: Callable[[], MpsDaemons], driver_root: Path) -> None:
    mute = driver_root / "usr/bin/mute"
    mute.touch()
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: "has not answered" in one.reason(CARD.uuid))
    mute.unlink()
    until(lambda: not one.reason(CARD.uuid))


@pytest.mark.whole
def test_a_daemon_that_stops_answering_is_told_and_not_ended(
    daemons: Callable[[], MpsDaemons], driver_root: Path, short_path: Path
) -> None:
    one = daemons()
    one.reconcile(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    mute = driver_root / "usr/bin/mute"
    mute.touch()
    until(lambda: "does not answer" in one.reason(CARD.uuid))
    mute.unlink()
    until(lambda: not one.reason(CARD.uuid))
    assert pid_of(short_path, CARD) == pid


def test_a_daemon_goes_on_for_a_section_of_another_name(daemons: Callable[..., MpsDaemons], short_path: Path) -> None:
    former, own = short_path / "former", short_path / "own"
    one = daemons(former)
    one.reconcile({CARD.uuid: (CARD, Mps())})
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(former, CARD)
    one.stop()
    other = daemons(own, [former])
    assert other.still_running(CARD.uuid)
    other.reconcile({CARD.uuid: (CARD, Mps()), OTHER.uuid: (OTHER, Mps())}, held=lambda _: True)
    until(lambda: not other.reason(CARD.uuid) and not other.reason(OTHER.uuid))
    assert pid_of(former, CARD) == pid
    assert Folders.of(own, CARD.uuid, [former]) == Folders.of(former, CARD.uuid), "new clients meet those who run"
    assert Folders.of(own, OTHER.uuid, [former]) == Folders.of(own, OTHER.uuid)


def test_a_daemon_of_a_section_of_another_name_is_stopped_when_its_card_is_shared_otherwise(
    daemons: Callable[..., MpsDaemons], short_path: Path
) -> None:
    former = short_path / "former"
    one = daemons(former)
    one.reconcile({CARD.uuid: (CARD, Mps())})
    until(lambda: not one.reason(CARD.uuid))
    one.stop()
    other = daemons(short_path / "own", [former])
    other.reconcile({}, held=lambda _: True, cards=[CARD])
    assert "still runs" in other.still_running(CARD.uuid)

    def stopped() -> bool:
        other.reconcile({}, cards=[CARD])
        return not other.still_running(CARD.uuid)

    until(stopped)
    assert not Folders.of(former, CARD.uuid).record.exists()
