"""Addresses of host-local after a reboot: those of before are free."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.node.ipam.addresses import add, network

from nodeplug import (
    Journal,
)
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.allocation import Ipam
from nodeplug_net.ipam.host_local import HostLocal, HostLocalConfig


def rebooted(scratch: ScratchCni, **more: Any) -> HostLocal:
    """The plugin as the next boot of the machine constructs it."""
    host = replace(scratch.host, boot_id="boot-2", journal=Journal(scratch.folder / "journal", "boot-2"))
    plugin = HostLocal(HostLocalConfig(data_dir=scratch.folder / "networks"), host)
    plugin._ipam = Ipam(host, scratch.folder / "networks", **more)
    return plugin


def age(path: Path) -> None:
    os.utime(path, (1000, 1000))


def test_a_reboot_frees_the_addresses_of_before(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    add(scratch, host_local, network(), "c1")
    age(folder / "10.1.2.2")
    rebooted(scratch).start()
    assert not (folder / "10.1.2.2").exists()


def test_a_restart_within_one_boot_frees_nothing(scratch: ScratchCni, host_local: HostLocal, folder: Path) -> None:
    add(scratch, host_local, network(), "c1")
    age(folder / "10.1.2.2")
    HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host).start()
    assert (folder / "10.1.2.2").exists()


def test_a_reboot_keeps_files_that_are_younger_than_the_boot(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    add(scratch, host_local, network(), "c1")
    rebooted(scratch, booted=lambda: time.time() - 3600).start()
    assert (folder / "10.1.2.2").exists()


def test_a_folder_that_the_journal_does_not_know_is_left_alone(
    scratch: ScratchCni, host_local: HostLocal, folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "10.1.2.9").write_text("foreign\r\neth0")
    age(folder / "10.1.2.9")
    host_local.start()
    add(scratch, host_local, network(), "c1")
    assert (folder / "10.1.2.9").exists()


def test_the_journal_is_written_once_per_network_and_boot(scratch: ScratchCni, host_local: HostLocal) -> None:
    add(scratch, host_local, network(), "c1")
    records = {path: path.stat().st_mtime_ns for path in (scratch.folder / "journal").iterdir()}
    assert len(records) == 1
    for index in range(3):
        add(scratch, host_local, network(), f"d{index}")
    HostLocal(HostLocalConfig(data_dir=scratch.folder / "networks"), scratch.host).start()
    assert {path: path.stat().st_mtime_ns for path in (scratch.folder / "journal").iterdir()} == records
