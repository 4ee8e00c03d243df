"""MPS control daemons: started, watched, found again, ended. The program stands in, the processes are real."""

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from nodeplug import Host, Journal
from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.mps.cards import MpsDaemons
from nodeplug_gpu.mps.client import Folders, client
from nodeplug_gpu.mps.daemon import recorded

CARD = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(9, 0))
OTHER = Card(Uuid("GPU-2"), 1, 1, "X", 16 << 30, compute_capability=(9, 0))

CONTROL = """#!/bin/sh
# Stands in for nvidia-cuda-mps-control: -f serves until it is told to quit; without it, a command comes on stdin.
folder="$CUDA_MPS_PIPE_DIRECTORY"
if [ "$1" = -f ]; then
    [ -e "$(dirname "$0")/broken" ] && { echo "no driver" >&2; exit 1; }
    echo "$LD_LIBRARY_PATH" > "$(dirname "$0")/libraries"
    echo "$CUDA_VISIBLE_DEVICES" > "$folder/control"
    trap 'rm -f "$folder/control"; exit 0' TERM
    while [ ! -e "$folder/quit" ]; do sleep 0.05; done
    rm -f "$folder/control" "$folder/quit"
else
    read -r command
    case "$command" in
        quit) touch "$folder/quit" ;;
        get_default_active_thread_percentage)
            [ -e "$(dirname "$0")/mute" ] && exec sleep 600
            [ -e "$folder/control" ] && echo 100.0 ;;
    esac
fi
"""
SMI = """#!/bin/sh
echo "$@" >> "$(dirname "$0")/modes"
"""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_gpu.mps.daemon.ASK_EVERY", 0.2)
    monkeypatch.setattr("nodeplug_gpu.mps.daemon.ASK_PATIENCE", 1.0)
    monkeypatch.setattr("nodeplug_gpu.mps.daemon.START_PATIENCE", 2.0)


@pytest.fixture
def driver_root(tmp_path: Path) -> Path:
    programs = tmp_path / "driver" / "usr" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("nvidia-cuda-mps-control", CONTROL), ("nvidia-smi", SMI)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    return tmp_path / "driver"


@pytest.fixture
def daemons(driver_root: Path, short_path: Path) -> Iterator[Callable[[], MpsDaemons]]:
    made: list[MpsDaemons] = []

    def make() -> MpsDaemons:
        log = logging.LoggerAdapter(logging.getLogger("nodeplug.plugin.gpu"), {})
        host = Host("gpu", "node", "boot", log, Journal(short_path), short_path, short_path, lambda _: None, None)  # type: ignore[arg-type] # no CNI here
        made.append(MpsDaemons(host, driver_root, lambda: None))
        return made[-1]

    yield make
    for one in made:
        one.stop()
    until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("gpu:mps:")])
    for record in short_path.glob("mps/*/daemon.json"):  # no thread is left that could write or remove one
        pid = recorded(record)
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def wanted(*cards: Card) -> dict[Uuid, tuple[Card, Mps]]:
    return {card.uuid: (card, Mps()) for card in cards}


def pid_of(short_path: Path, card: Card) -> int:
    pid = recorded(Folders.of(short_path, card.uuid).record)
    assert pid is not None
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_daemon_is_started_for_its_card_alone(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    assert one.reason(CARD.uuid)
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert (Folders.of(short_path, CARD.uuid).pipes / "control").read_text().strip() == CARD.uuid


def test_each_card_has_a_daemon_of_its_own(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    one.keep(wanted(CARD, OTHER))
    until(lambda: not one.reason(CARD.uuid) and not one.reason(OTHER.uuid))
    assert pid_of(short_path, CARD) != pid_of(short_path, OTHER)


def test_a_daemon_that_dies_is_started_again(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    first = pid_of(short_path, CARD)
    os.kill(first, signal.SIGKILL)
    until(lambda: one.reason(CARD.uuid))
    until(lambda: not one.reason(CARD.uuid) and pid_of(short_path, CARD) != first)


def test_the_end_of_nodeplug_leaves_the_daemon_to_its_clients_and_the_next_start_finds_it(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    assert alive(pid)
    two = daemons()
    two.keep(wanted(CARD))
    until(lambda: not two.reason(CARD.uuid))
    assert pid_of(short_path, CARD) == pid


def test_a_card_that_is_no_longer_shared_loses_its_daemon(daemons: Callable[[], MpsDaemons], short_path: Path) -> None:
    one = daemons()
    one.keep(wanted(CARD, OTHER))
    until(lambda: not one.reason(CARD.uuid) and not one.reason(OTHER.uuid))
    gone, stays = pid_of(short_path, CARD), pid_of(short_path, OTHER)
    one.keep(wanted(OTHER))
    until(lambda: not alive(gone))
    assert alive(stays)
    assert not one.reason(OTHER.uuid)


def test_a_daemon_of_an_earlier_configuration_is_ended_at_the_next_start(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    daemons().keep({})
    until(lambda: not alive(pid))


def test_a_daemon_that_cannot_start_is_told_and_tried_again(
    daemons: Callable[[], MpsDaemons], driver_root: Path
) -> None:
    broken = driver_root / "usr" / "bin" / "broken"
    broken.touch()
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: "ended" in one.reason(CARD.uuid))
    broken.unlink()
    until(lambda: not one.reason(CARD.uuid))


def test_a_missing_program_is_told_by_its_name(daemons: Callable[[], MpsDaemons], driver_root: Path) -> None:
    one = daemons()
    one.keep({CARD.uuid: (CARD, Mps(command="/nowhere/nvidia-cuda-mps-control"))})
    until(lambda: "/nowhere/nvidia-cuda-mps-control" in one.reason(CARD.uuid))


def test_a_pid_that_is_another_process_by_now_is_not_taken_for_the_daemon(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    folders = Folders.of(short_path, CARD.uuid)
    folders.root.mkdir(parents=True)
    bystander = subprocess.Popen(["sleep", "600"])
    folders.record.write_text(f'{{"pid": {bystander.pid}, "started": "1"}}')
    one = daemons()
    one.keep(wanted(CARD))
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
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert modes.read_text().splitlines() == ["-i GPU-1 -c EXCLUSIVE_PROCESS"]
    one.keep({})
    until(lambda: modes.read_text().splitlines()[-1] == "-i GPU-1 -c DEFAULT")


def test_a_daemon_of_an_earlier_configuration_gives_back_its_card_for_all(
    daemons: Callable[[], MpsDaemons], short_path: Path, driver_root: Path
) -> None:
    modes = driver_root / "usr" / "bin" / "modes"
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    one.stop()
    os.kill(pid_of(short_path, CARD), signal.SIGKILL)
    later = daemons()
    assert later.leftover(CARD.uuid)
    later.keep({}, cards=[CARD])
    until(lambda: modes.read_text().splitlines()[-1] == "-i GPU-1 -c DEFAULT")
    until(lambda: not Folders.of(short_path, CARD.uuid).record.exists())
    later.keep({})
    until(lambda: not later.leftover(CARD.uuid))


def test_the_daemon_of_a_card_that_containers_hold_goes_on_until_they_are_gone(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    later = daemons()
    for _ in range(2):
        later.keep({}, held=lambda _: True, cards=[CARD])
    assert later.leftover(CARD.uuid) == "its MPS control daemon still runs; it ends when no container holds the card"
    assert alive(pid)
    later.keep({}, cards=[CARD])
    until(lambda: not alive(pid))


def test_a_card_that_is_shared_by_mps_again_waits_for_the_end_of_its_former_daemon(
    daemons: Callable[[], MpsDaemons], short_path: Path, driver_root: Path
) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    first = pid_of(short_path, CARD)
    one.keep({})
    one.keep(wanted(CARD))
    assert one.reason(CARD.uuid) == "its former MPS control daemon is ending"

    def serves() -> bool:
        one.keep(wanted(CARD))
        return not one.reason(CARD.uuid)

    until(serves)
    assert pid_of(short_path, CARD) != first
    modes = (driver_root / "usr" / "bin" / "modes").read_text().splitlines()
    assert [mode.rpartition(" ")[2] for mode in modes] == ["EXCLUSIVE_PROCESS", "DEFAULT", "EXCLUSIVE_PROCESS"]


def test_the_mode_of_a_card_follows_a_changed_configuration(
    daemons: Callable[[], MpsDaemons], short_path: Path, driver_root: Path
) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    one.stop()
    daemons().keep({CARD.uuid: (CARD, Mps(exclusive_process=False))})
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
    one.keep(wanted(CARD))
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
    one.keep(wanted(CARD))
    until(lambda: "longer than 107 bytes" in one.reason(CARD.uuid))


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


def test_no_other_user_may_write_to_the_folders_of_a_daemon(
    daemons: Callable[[], MpsDaemons], short_path: Path
) -> None:
    folders = Folders.of(short_path, CARD.uuid)
    folders.pipes.mkdir(parents=True)
    folders.pipes.chmod(0o777)  # as a version before left it
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    assert (folders.pipes.stat().st_mode & 0o777, folders.logs.stat().st_mode & 0o777) == (0o755, 0o700)


def test_a_socket_without_an_answer_is_not_enough(daemons: Callable[[], MpsDaemons], driver_root: Path) -> None:
    mute = driver_root / "usr/bin/mute"
    mute.touch()
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: "has not answered" in one.reason(CARD.uuid))
    mute.unlink()
    until(lambda: not one.reason(CARD.uuid))


def test_a_daemon_that_stops_answering_is_told_and_not_ended(
    daemons: Callable[[], MpsDaemons], driver_root: Path, short_path: Path
) -> None:
    one = daemons()
    one.keep(wanted(CARD))
    until(lambda: not one.reason(CARD.uuid))
    pid = pid_of(short_path, CARD)
    mute = driver_root / "usr/bin/mute"
    mute.touch()
    until(lambda: "does not answer" in one.reason(CARD.uuid))
    mute.unlink()
    until(lambda: not one.reason(CARD.uuid))
    assert pid_of(short_path, CARD) == pid


def test_a_small_share_still_is_one_percent(tmp_path: Path) -> None:
    grant = client(Folders(tmp_path), CARD, 1 << 20, 0.001, threads=True)
    assert grant.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "1"


def test_multiprocessors_are_not_limited_where_that_is_switched_off(tmp_path: Path) -> None:
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in client(Folders(tmp_path), CARD, 1 << 30, 0.5, threads=False).env


def test_a_card_before_volta_has_no_limits(tmp_path: Path) -> None:
    old = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(6, 1))
    assert "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT" not in client(Folders(tmp_path), old, 1 << 30, 0.5, threads=True).env
