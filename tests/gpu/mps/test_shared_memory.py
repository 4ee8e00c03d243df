"""The memory that a card's MPS daemon shares with its clients: its own, bounded, and there as long as it is needed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from nodeplug import mount, mounted_at, unmount
from nodeplug.contract.mounts import mounts
from nodeplug.testing.waiting import until
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.mps.cards import MpsDaemons
from nodeplug_gpu.mps.client import client
from nodeplug_gpu.mps.folders import Folders
from nodeplug_gpu.mps.record import Record, recorded, start_time

CARD = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30, compute_capability=(9, 0))
OTHER = Card(Uuid("GPU-2"), 1, 1, "X", 16 << 30, compute_capability=(9, 0))
Make = Callable[[], MpsDaemons]
LIFE = """
import sys, time
from dataclasses import replace
from pathlib import Path
from nodeplug.testing import host
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Mps
from nodeplug_gpu.mps.cards import MpsDaemons
run, driver = map(Path, sys.argv[1:])
daemons = MpsDaemons(replace(host(run), run_dir=run), driver, lambda: None)
card = Card(Uuid("GPU-1"), 0, 0, "X", 16 << 30)
daemons.reconcile({card.uuid: (card, Mps())})
end = time.monotonic() + 60
while time.monotonic() < end and "cannot mount" not in daemons.reason(card.uuid):
    time.sleep(0.02)
print(daemons.reason(card.uuid))
"""


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nodeplug_gpu.mps.cards.GRACE_PERIOD", 0.2)
    monkeypatch.setattr("nodeplug_gpu.mps.cards.SETTLE_TIME", 0.2)


def wanted(*cards: Card, **config: int) -> dict[Uuid, tuple[Card, Mps]]:
    return {card.uuid: (card, Mps(**config)) for card in cards}


def serve(daemons: MpsDaemons, *cards: Card, **config: int) -> None:
    daemons.reconcile(wanted(*cards, **config), held=lambda _: True)
    until(lambda: not any(daemons.reason(card.uuid) for card in cards))


def pid_of(run: Path, card: Card) -> int:
    pid = recorded(Folders.of(run, card.uuid).record)
    assert pid is not None
    return pid


def memory_of(run: Path, card: Card) -> Path:
    """Return what kubelet's runtime would mount as /dev/shm for a client of a card."""
    grant = client(Folders.of(run, card.uuid), card, 4 << 30, 0.25, threads=True)
    (found,) = [mount for mount in grant.mounts if mount.container_path == "/dev/shm"]
    assert not found.read_only
    return Path(found.host_path)


def seen_by_daemon(run: Path, card: Card) -> Path:
    return Path(f"/proc/{pid_of(run, card)}/root/dev/shm")


def mounted_below(folder: Path) -> list[str]:
    return sorted(mount.target for mount in mounts() if mount.target.startswith(f"{folder}/"))


def both(run: Path, card: Card) -> list[str]:
    folders = Folders.of(run, card.uuid)
    return sorted(map(str, (folders.logs, folders.shm)))


def as_a_version_before(run: Path, driver_root: Path) -> int:
    """Start a daemon as the last version did: with the node's /dev/shm, logs in plain folders, and a shorter record."""
    folders = Folders.of(run, CARD.uuid)
    for folder in (folders.pipes, folders.logs):
        folder.mkdir(parents=True)
    (folders.logs / "server.log").write_text("a line\n")
    env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(folders.pipes), "CUDA_VISIBLE_DEVICES": CARD.uuid}
    with (folders.root / "control.log").open("wb") as log:
        program = subprocess.Popen(
            [driver_root / "usr/bin/nvidia-cuda-mps-control", "-f"], env=env, stdout=log, start_new_session=True
        )
    folders.record.write_text(json.dumps({"pid": program.pid, "started": start_time(program.pid), "exclusive": True}))
    until(lambda: folders.ready)
    program.returncode = 0  # it is init's from now on
    return program.pid


def fill(path: Path) -> int:
    """Write to a file as much as there is room for, 64 MiB at most, and return how many bytes that is."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        for _ in range(64 << 8):
            file.write(bytes(4096))
    return path.stat().st_size


def touch(folder: Path, many: int) -> None:
    for number in range(many):
        (folder / str(number)).touch()


@pytest.mark.node
def test_a_client_gets_memory_of_the_cards_own_and_not_the_nodes(daemons: Make, short_path: Path) -> None:
    serve(daemons(), CARD)
    given = memory_of(short_path, CARD)
    assert given.is_relative_to(short_path)
    found = mounted_at(str(given))
    assert found is not None
    assert (found.fs_type, given.stat().st_mode & 0o7777) == ("tmpfs", 0o1777)
    assert {"nosuid", "nodev", "noexec", "rw"} <= set(found.options)


@pytest.mark.node
def test_what_a_client_writes_is_seen_by_the_daemon_and_not_by_the_node(daemons: Make, short_path: Path) -> None:
    serve(daemons(), CARD)
    name = f"of-a-client-{os.getpid()}"
    (memory_of(short_path, CARD) / name).write_text("hello")
    try:
        assert (seen_by_daemon(short_path, CARD) / name).read_text() == "hello"
        assert not Path("/dev/shm", name).exists()
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)


@pytest.mark.node
def test_what_the_daemon_mounts_as_its_own_is_not_mounted_on_the_node(daemons: Make, short_path: Path) -> None:
    before = [mount.device for mount in mounts() if mount.target == "/dev/shm"]
    serve(daemons(), CARD)
    assert [mount.device for mount in mounts() if mount.target == "/dev/shm"] == before


@pytest.mark.node
@pytest.mark.programs("mount")
def test_what_the_node_unmounts_goes_in_the_daemon_too(daemons: Make, short_path: Path) -> None:
    volume = short_path / "kubelet" / "volume"
    volume.parent.mkdir()
    mount("tmpfs", str(volume.parent), "tmpfs")
    subprocess.run(["mount", "--make-shared", volume.parent], check=True)  # as systemd does with `/`
    volume.mkdir()
    mount("tmpfs", str(volume), "tmpfs")
    serve(daemons(), CARD)
    table = Path(f"/proc/{pid_of(short_path, CARD)}/mountinfo")
    assert f" {volume} " in table.read_text()
    unmount(str(volume))
    assert f" {volume} " not in table.read_text()


@pytest.mark.node
def test_clients_can_take_no_more_memory_than_the_configuration_says(daemons: Make, short_path: Path) -> None:
    serve(daemons(), CARD, shm_size=2 << 20)
    given = memory_of(short_path, CARD)
    assert fill(given / "much") == 2 << 20


@pytest.mark.node
def test_empty_files_of_clients_are_bounded_too(daemons: Make, short_path: Path) -> None:
    serve(daemons(), CARD, shm_size=1 << 20)
    given = memory_of(short_path, CARD)
    with pytest.raises(OSError, match="No space left"):
        touch(given, 10_000)


@pytest.mark.node
def test_the_clients_of_one_card_do_not_see_the_memory_of_another(daemons: Make, short_path: Path) -> None:
    serve(daemons(), CARD, OTHER)
    (memory_of(short_path, CARD) / "mine").touch()
    assert not (memory_of(short_path, OTHER) / "mine").exists()
    assert not (seen_by_daemon(short_path, OTHER) / "mine").exists()


@pytest.mark.node
def test_nodeplug_finds_the_memory_again_with_the_daemon(daemons: Make, short_path: Path) -> None:
    one = daemons()
    serve(one, CARD)
    pid = pid_of(short_path, CARD)
    (memory_of(short_path, CARD) / "kept").touch()
    one.stop()
    serve(daemons(), CARD)
    assert pid_of(short_path, CARD) == pid
    assert (memory_of(short_path, CARD) / "kept").exists()
    assert mounted_below(short_path) == both(short_path, CARD)


@pytest.mark.node
def test_a_daemon_that_is_started_again_has_the_memory_of_its_clients(daemons: Make, short_path: Path) -> None:
    one = daemons()
    serve(one, CARD)
    first = pid_of(short_path, CARD)
    (memory_of(short_path, CARD) / "kept").touch()
    os.kill(first, signal.SIGKILL)
    until(lambda: recorded(Folders.of(short_path, CARD.uuid).record) not in {None, first})
    until(lambda: not one.reason(CARD.uuid))
    assert (seen_by_daemon(short_path, CARD) / "kept").exists()
    assert mounted_below(short_path) == both(short_path, CARD)


@pytest.mark.whole
@pytest.mark.node
def test_a_start_that_is_killed_before_the_daemon_runs_leaves_one_mount_in_the_end(
    daemons: Make, short_path: Path, driver_root: Path
) -> None:
    deadly = driver_root / "usr/bin/nvidia-smi"  # called after the mounts and before the daemon
    harmless = deadly.read_text()
    deadly.write_text("#!/bin/sh\nkill -9 $PPID\n")
    for _ in range(2):
        ended = subprocess.run([sys.executable, "-c", LIFE, short_path, driver_root], check=False)
        assert ended.returncode == -signal.SIGKILL
        assert mounted_below(short_path) == both(short_path, CARD)
    deadly.write_text(harmless)
    serve(daemons(), CARD)
    assert mounted_below(short_path) == both(short_path, CARD)


@pytest.mark.whole
@pytest.mark.node
def test_what_a_killed_start_mounted_for_a_card_without_mps_is_taken_away(
    daemons: Make, short_path: Path, driver_root: Path
) -> None:
    (driver_root / "usr/bin/nvidia-smi").write_text("#!/bin/sh\nkill -9 $PPID\n")
    subprocess.run([sys.executable, "-c", LIFE, short_path, driver_root], check=False)
    assert mounted_below(short_path)
    daemons().reconcile({}, cards=[CARD])
    assert not mounted_below(short_path)


@pytest.mark.node
def test_the_end_of_a_daemon_takes_its_mounts_away_even_if_somebody_is_in_them(daemons: Make, short_path: Path) -> None:
    one = daemons()
    serve(one, CARD, OTHER)
    with (memory_of(short_path, CARD) / "open").open("wb"):
        one.reconcile(wanted(OTHER))
        until(lambda: not Folders.of(short_path, CARD.uuid).record.exists())
        assert mounted_below(short_path) == both(short_path, OTHER)


@pytest.mark.node
def test_the_mounts_of_a_card_that_is_gone_are_taken_away(daemons: Make, short_path: Path) -> None:
    one = daemons()
    serve(one, CARD)
    one.stop()
    daemons().reconcile({}, cards=[OTHER])
    assert not mounted_below(short_path)


@pytest.mark.node
def test_a_daemon_of_a_version_before_keeps_its_clients_and_gets_more_of_the_same(
    daemons: Make, short_path: Path, driver_root: Path
) -> None:
    pid = as_a_version_before(short_path, driver_root)
    one = daemons()
    serve(one, CARD)
    time.sleep(0.5)  # longer than an unheld card would be waited for
    serve(one, CARD)
    assert pid_of(short_path, CARD) == pid
    assert memory_of(short_path, CARD) == Path("/dev/shm")
    assert not mounted_below(short_path)


@pytest.mark.node
def test_a_daemon_of_a_version_before_is_replaced_once_no_container_holds_its_card(
    daemons: Make, short_path: Path, driver_root: Path
) -> None:
    pid = as_a_version_before(short_path, driver_root)
    one, reasons = daemons(), set()
    serve(one, CARD)

    def replaced() -> bool:
        one.reconcile(wanted(CARD))
        reasons.add(one.reason(CARD.uuid).partition(":")[0])
        record = Record.read(Folders.of(short_path, CARD.uuid).record)
        return record is not None and record.pid != pid and not one.reason(CARD.uuid)

    until(replaced)
    assert "its MPS control daemon is about to be replaced" in reasons, "it was offered until its end"
    assert start_time(pid) == ""
    assert memory_of(short_path, CARD) == Folders.of(short_path, CARD.uuid).shm
    assert not (Folders.of(short_path, CARD.uuid).root / "control.log").exists(), "logs in /run are nobody's any more"


@pytest.mark.node
def test_a_daemon_of_a_version_before_that_dies_is_started_as_it_was_for_those_who_hold_the_card(
    daemons: Make, short_path: Path, driver_root: Path
) -> None:
    pid = as_a_version_before(short_path, driver_root)
    one = daemons()
    serve(one, CARD)
    os.kill(pid, signal.SIGKILL)
    until(lambda: recorded(Folders.of(short_path, CARD.uuid).record) not in {None, pid})
    serve(one, CARD)
    assert memory_of(short_path, CARD) == Path("/dev/shm")
    assert seen_by_daemon(short_path, CARD).stat().st_dev == Path("/dev/shm").stat().st_dev


@pytest.mark.node
def test_another_size_waits_until_no_container_holds_the_card(daemons: Make, short_path: Path) -> None:
    one = daemons()
    serve(one, CARD, shm_size=2 << 20)
    first = pid_of(short_path, CARD)
    one.stop()
    two = daemons()
    serve(two, CARD, shm_size=3 << 20)
    assert os.statvfs(memory_of(short_path, CARD)).f_blocks * 4096 == 2 << 20

    def replaced() -> bool:
        two.reconcile(wanted(CARD, shm_size=3 << 20))
        return recorded(Folders.of(short_path, CARD.uuid).record) not in {None, first} and not two.reason(CARD.uuid)

    until(replaced)
    assert os.statvfs(memory_of(short_path, CARD)).f_blocks * 4096 == 3 << 20
    assert mounted_below(short_path) == both(short_path, CARD)


@pytest.mark.node
def test_a_card_whose_memory_somebody_unmounted_is_not_allocatable_and_says_so(daemons: Make, short_path: Path) -> None:
    one = daemons()
    serve(one, CARD)
    unmount(str(Folders.of(short_path, CARD.uuid).shm))
    until(lambda: "is no longer mounted" in one.reason(CARD.uuid))


@pytest.mark.node
def test_logs_are_bounded_and_of_root_alone(daemons: Make, short_path: Path, driver_root: Path) -> None:
    (driver_root / "usr/bin/chatty").touch()
    serve(daemons(), CARD)
    folders = Folders.of(short_path, CARD.uuid)
    assert mounted_at(str(folders.logs)) is not None
    assert (driver_root / "usr/bin/logs").read_text() == f"{folders.logs}\n"
    assert folders.logs.stat().st_mode & 0o777 == 0o700
    assert os.statvfs(folders.logs).f_blocks * 4096 == 4 << 20
    assert [file.name for file in folders.root.iterdir() if file.is_file()] == ["daemon.json"]
    assert [file.name for file in folders.logs.iterdir()] == ["output.log"]


@pytest.mark.node
def test_a_daemon_whose_logs_are_full_goes_on_and_the_last_lines_are_kept(
    daemons: Make, short_path: Path, driver_root: Path
) -> None:
    one = daemons()
    serve(one, CARD)
    pid, logs = pid_of(short_path, CARD), Folders.of(short_path, CARD.uuid).logs
    fill(logs / "server.log")
    (driver_root / "usr/bin/chatty").touch()
    until(lambda: b"a line" in (logs / "output.log").read_bytes())
    until(lambda: os.statvfs(logs).f_bavail * 4 > os.statvfs(logs).f_blocks)
    assert pid_of(short_path, CARD) == pid
    assert not one.reason(CARD.uuid)


@pytest.mark.whole
def test_an_ordinary_user_is_told_why_mps_cannot_be_had(
    short_path: Path, driver_root: Path, request: pytest.FixtureRequest
) -> None:
    command, env = [sys.executable], dict(os.environ)
    if os.geteuid() == 0:
        user = request.getfixturevalue("other_user")
        command, env = [*user.prefix, user.python], user.env
        os.chown(short_path, 65534, 65534)
    told = subprocess.run(
        [*command, "-c", LIFE, short_path, driver_root], env=env, cwd="/", capture_output=True, text=True, check=True
    ).stdout.strip()
    assert told.startswith("its MPS control daemon does not start: cannot mount 'tmpfs' on ")
    assert told.endswith("Operation not permitted; it needs root with CAP_SYS_ADMIN, in a pod `privileged: true`")


def test_a_record_of_a_version_before_is_read(tmp_path: Path) -> None:
    (tmp_path / "daemon.json").write_text('{"pid": 7, "started": "12", "exclusive": false}')
    assert Record.read(tmp_path / "daemon.json") == Record(7, "12", exclusive=False, shm=None)


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    record = Record(7, "12", exclusive=True, shm=64 << 20)
    record.write(tmp_path / "daemon.json")
    assert Record.read(tmp_path / "daemon.json") == record
