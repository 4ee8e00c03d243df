"""The folder of host-local, which other programs change too."""

import fcntl
import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.node.ipam.addresses import add, network

from nodeplug import (
    PluginError,
    mount,
    unmount,
)
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.host_local import HostLocal, HostLocalConfig


def test_a_file_of_an_old_version_is_released_by_container_alone(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "10.1.2.9").write_text("  c1\n")
    assert add(scratch, host_local, network(), "c1") == ["10.1.2.9/24"]
    scratch.delete(host_local, network(), "c1")
    assert not (folder / "10.1.2.9").exists()


def test_files_of_another_program_are_respected(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    add(scratch, host_local, network(), "c1")
    (folder / "10.1.2.3").write_text("foreign\r\neth0")
    assert add(scratch, host_local, network(), "c2") == ["10.1.2.4/24"]
    (folder / "10.1.2.2").unlink()
    (folder / "last_reserved_ip.0").write_text("10.1.2.1")
    assert add(scratch, host_local, network(), "c3") == ["10.1.2.2/24"]


def test_a_file_that_appears_unseen_is_not_given_out(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    """Two changes within one tick of a coarse clock leave one modification time."""
    add(scratch, host_local, network(), "c1")
    stamp = folder.stat().st_mtime_ns
    (folder / "10.1.2.3").write_text("foreign\r\neth0")
    os.utime(folder, ns=(stamp, stamp))
    assert add(scratch, host_local, network(), "c2") == ["10.1.2.4/24"]


def test_an_address_of_a_program_that_was_killed_while_it_reserved_is_free(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "10.1.2.2").touch()
    assert add(scratch, host_local, network("10.1.2.0/30"), "c1") == ["10.1.2.2/30"]


def test_changes_of_another_program_within_one_tick_of_the_clock_are_seen(scratch: ScratchCni, tmp_path: Path) -> None:
    slow_clock = tmp_path / "ramfs"  # its times are ticks, as ext4's are before Linux 6.13
    slow_clock.mkdir()
    mount("ramfs", str(slow_clock), "ramfs")
    try:
        one, other = (HostLocal(HostLocalConfig(data_dir=slow_clock), scratch.host) for _ in range(2))
        for number in range(50):
            add(scratch, one, network(), f"a{number}")
            add(scratch, other, network(), f"b{number}")
            scratch.delete(one, network(), f"b{number}", None)
            scratch.delete(other, network(), f"a{number}", None)
        assert [path.name for path in (slow_clock / "net").iterdir() if path.name[0] == "1"] == []
    finally:
        unmount(str(slow_clock))


def test_a_late_del_keeps_an_address_that_changed_hands_unseen(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    add(scratch, host_local, network(), "c1")
    stamp = folder.stat().st_mtime_ns
    (folder / "10.1.2.2").write_text("foreign\r\neth0")
    os.utime(folder, ns=(stamp, stamp))
    scratch.delete(host_local, network(), "c1")
    assert (folder / "10.1.2.2").exists()


def rewrite(folder: Path, address: str, who: str) -> None:
    """Change the owner in place, as an editor may: the folder's time stays as it was."""
    stamp = folder.stat().st_mtime_ns
    (folder / address).write_text(f"{who}\r\neth0")
    assert folder.stat().st_mtime_ns == stamp


def test_del_frees_an_address_that_was_rewritten_in_place(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    add(scratch, host_local, network(), "c1")
    add(scratch, host_local, network(), "c2")
    rewrite(folder, "10.1.2.2", "c3")
    scratch.delete(host_local, network(), "c3")
    assert not (folder / "10.1.2.2").exists()
    rewrite(folder, "10.1.2.3", "c4")
    scratch.delete(host_local, network(), "c4")
    assert not (folder / "10.1.2.3").exists()


def test_check_finds_an_address_that_was_rewritten_in_place(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    result = scratch.add(host_local, network(), "c1", scratch.host_netns)
    rewrite(folder, "10.1.2.2", "c2")
    scratch.check(host_local, network(), "c2", scratch.host_netns, result)
    with pytest.raises(PluginError, match="container c1"):
        scratch.check(host_local, network(), "c1", scratch.host_netns, result)


def test_gc_frees_and_keeps_addresses_by_who_has_them_now(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    for who in ("c1", "c2"):
        add(scratch, host_local, network(), who)
    rewrite(folder, "10.1.2.2", "valid")
    rewrite(folder, "10.1.2.3", "lost")
    scratch.gc(host_local, network(), [("valid", "eth0"), ("c2", "eth0")])
    assert ((folder / "10.1.2.2").exists(), (folder / "10.1.2.3").exists()) == (True, False)


def test_a_second_del_reads_no_file(
    scratch: ScratchCni, host_local: HostLocal, monkeypatch: pytest.MonkeyPatch
) -> None:
    for who in ("c1", "c2"):
        add(scratch, host_local, network(), who)
    scratch.delete(host_local, network(), "c1")
    read: list[str] = []
    monkeypatch.setattr("nodeplug_net.ipam.store._read", read.append)
    scratch.delete(host_local, network(), "c1")
    assert read == []


def test_a_pool_whose_folder_was_removed_is_forgotten_at_the_next_start(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    add(scratch, host_local, network(), "c1")
    assert len(list((scratch.folder / "journal").iterdir())) == 1
    (folder.parent / "another").mkdir()  # an empty folder of networks may be a mount point whose disk is away
    shutil.rmtree(folder)
    HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host).start()
    assert list((scratch.folder / "journal").iterdir()) == []


def test_a_removed_folder_is_made_anew(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    add(scratch, host_local, network(), "c1")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    assert add(scratch, host_local, network(), "c2") == ["10.1.2.2/24"]


def test_the_lock_of_the_folder_is_waited_for(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    folder.mkdir(parents=True)
    done = threading.Event()

    def run() -> None:
        add(scratch, host_local, network(), "c1")
        done.set()

    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=run)
        thread.start()
        assert not done.wait(0.2)
    thread.join()
    assert done.is_set()
