"""The folder of addresses when it is damaged, odd or read-only: nobody gets an address twice, and every DEL ends."""

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Journal, NotReady, PluginError, bind, mount, unmount
from nodeplug.testing.scratch_cni import ScratchCni
from nodeplug_net.ipam.host_local import HostLocal, HostLocalConfig
from nodeplug_net.ipam.store import Store

NETWORK = {
    "cniVersion": "1.1.0",
    "name": "net",
    "type": "nodeplug-host-local",
    "ipam": {"type": "host-local", "subnet": "10.1.2.0/29"},  # .2 to .6
}


@pytest.fixture
def plugin(scratch: ScratchCni) -> HostLocal:
    made = HostLocal(HostLocalConfig(data_dir=scratch.folder / "networks"), scratch.host)
    made.start()
    return made


def add(scratch: ScratchCni, plugin: HostLocal, name: str) -> str:
    return str(scratch.add(plugin, NETWORK, name, scratch.container()).ips[0].address.ip)


def rebooted(scratch: ScratchCni) -> HostLocal:
    """The plugin as the next boot of the machine constructs it."""
    host = replace(scratch.host, boot_id="boot-2", journal=Journal(scratch.folder / "journal", "boot-2"))
    plugin = HostLocal(HostLocalConfig(data_dir=scratch.folder / "networks"), host)
    plugin.start()
    return plugin


def held(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name[0].isdigit()}


# --- after a reboot -----------------------------------------------------------------------------------------------


def damage(record: Path) -> None:
    record.write_bytes(record.read_bytes()[:20])


@pytest.mark.parametrize("lose", [damage, Path.unlink], ids=["damaged", "missing"])
def test_a_reboot_frees_the_addresses_of_before_without_the_record_of_the_pool(
    scratch: ScratchCni, plugin: HostLocal, folder: Path, lose: Callable[[Path], None]
) -> None:
    for number in range(5):
        add(scratch, plugin, f"c{number}")
    for path in folder.iterdir():
        os.utime(path, (1000, 1000))
    (record,) = (scratch.folder / "journal").glob("pool*.json")
    lose(record)
    again = rebooted(scratch)
    assert held(folder) == set()
    scratch.status(again, NETWORK)
    add(scratch, again, "new")


def test_a_record_that_is_lost_within_one_boot_frees_nothing(
    scratch: ScratchCni, plugin: HostLocal, folder: Path
) -> None:
    address = add(scratch, plugin, "c1")
    os.utime(folder / address, (1000, 1000))
    for record in (scratch.folder / "journal").glob("pool*.json"):
        record.unlink()
    HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host).start()
    assert held(folder) == {address}


def test_a_plugin_starts_when_no_record_of_a_pool_can_be_written(
    scratch: ScratchCni, plugin: HostLocal, folder: Path
) -> None:
    add(scratch, plugin, "c1")
    journal = scratch.folder / "journal"
    for record in journal.iterdir():
        record.unlink()
    journal.rmdir()
    journal.touch()  # a file where the folder is due
    again = HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host)
    again.start()
    scratch.delete(again, NETWORK, "c1")
    assert held(folder) == set()


# --- odd names and odd files --------------------------------------------------------------------------------------

ODD: dict[str, Callable[[Path], None]] = {
    "a directory": Path.mkdir,
    "a pipe": os.mkfifo,
    "a dangling link": lambda path: path.symlink_to("nowhere"),
}


@pytest.mark.parametrize("make", ODD.values(), ids=ODD)
def test_what_is_named_like_an_address_takes_that_address_alone(
    scratch: ScratchCni, plugin: HostLocal, folder: Path, make: Callable[[Path], None]
) -> None:
    first = add(scratch, plugin, "c1")
    make(folder / "10.1.2.3")
    scratch.status(plugin, NETWORK)
    assert {add(scratch, plugin, name) for name in ("c2", "c3")} == {"10.1.2.4", "10.1.2.5"}
    scratch.gc(plugin, NETWORK, [("c1", "eth0"), ("c2", "eth0")])
    for name in ("c1", "c2"):
        scratch.delete(plugin, NETWORK, name)
    assert held(folder) == {"10.1.2.3"}
    assert first == "10.1.2.2"


def test_a_directory_named_like_an_address_is_told_once_with_its_path(
    scratch: ScratchCni, plugin: HostLocal, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    add(scratch, plugin, "c1")
    (folder / "10.1.2.3").mkdir()
    for name in ("c2", "c3"):
        add(scratch, plugin, name)
    assert [record.getMessage() for record in caplog.records if str(folder / "10.1.2.3") in record.getMessage()] == [
        f"address 10.1.2.3 is not given out: {folder}/10.1.2.3: Is a directory; remove what is there"
    ]


def test_a_directory_in_place_of_the_last_address_costs_a_longer_search(
    scratch: ScratchCni, plugin: HostLocal, folder: Path
) -> None:
    folder.mkdir(parents=True)
    (folder / "last_reserved_ip.0").mkdir()
    assert {add(scratch, plugin, name) for name in ("c1", "c2")} == {"10.1.2.2", "10.1.2.3"}


@pytest.mark.parametrize("size", [4080, 4096, 5000, 100_000])
def test_del_frees_the_address_of_a_long_container_id(
    scratch: ScratchCni, plugin: HostLocal, folder: Path, size: int
) -> None:
    name = "c" * size
    assert add(scratch, plugin, name) == add(scratch, plugin, name)
    again = HostLocal(HostLocalConfig(data_dir=folder.parent), scratch.host)  # one that remembers nothing
    scratch.delete(again, NETWORK, name)
    assert held(folder) == set()


def test_del_of_a_network_whose_name_no_folder_can_have_succeeds(scratch: ScratchCni, plugin: HostLocal) -> None:
    scratch.delete(plugin, {**NETWORK, "name": "n" * 300}, "c1")


def test_del_succeeds_when_the_folder_of_all_networks_is_a_file(scratch: ScratchCni, plugin: HostLocal) -> None:
    (scratch.folder / "networks").touch()
    scratch.delete(plugin, NETWORK, "c1")


# --- a disk that is read-only -------------------------------------------------------------------------------------


@pytest.fixture
def read_only(folder: Path) -> Iterator[Callable[[], Callable[[], None]]]:
    """Make the folder read-only; what is returned makes it writable again."""
    mounted: list[str] = []

    def undo() -> None:
        while mounted:
            unmount(mounted.pop())

    def make() -> Callable[[], None]:
        bind(str(folder), str(folder), read_only=True)
        mounted.append(str(folder))
        return undo

    yield make
    undo()


def test_del_on_a_read_only_disk_succeeds_and_the_address_is_freed_later(
    scratch: ScratchCni, plugin: HostLocal, folder: Path, read_only: Any
) -> None:
    address = add(scratch, plugin, "c1")
    writable = read_only()
    for _ in range(2):
        scratch.delete(plugin, NETWORK, "c1")
    assert held(folder) == {address}
    writable()
    scratch.status(plugin, NETWORK)
    assert held(folder) == set()


def test_a_container_that_comes_back_after_such_a_del_keeps_its_new_address(
    scratch: ScratchCni, plugin: HostLocal, folder: Path, read_only: Any
) -> None:
    add(scratch, plugin, "c1")
    writable = read_only()
    scratch.delete(plugin, NETWORK, "c1")
    writable()
    address = add(scratch, plugin, "c1")
    scratch.status(plugin, NETWORK)
    assert held(folder) == {address}


def test_status_tells_of_a_read_only_disk(scratch: ScratchCni, plugin: HostLocal, folder: Path, read_only: Any) -> None:
    add(scratch, plugin, "c1")
    read_only()
    with pytest.raises(NotReady, match=f"{folder}, where addresses are reserved, is read-only"):
        scratch.status(plugin, NETWORK)


def test_an_address_is_free_again_when_the_disk_has_no_room_for_its_owner(tmp_path: Path) -> None:
    address = ip_address("10.88.0.2")
    mount("full", str(tmp_path), "tmpfs", options=["size=4k"])
    try:
        (tmp_path / "filling").write_bytes(b"x" * 4096)
        store = Store(tmp_path)
        with store.locked(create=True):
            with pytest.raises(PluginError, match=r"cannot reserve 10\.88\.0\.2: .*No space left on device"):
                store.reserve(address, ("c1", "eth0"))
            assert (store.owners(), (tmp_path / "10.88.0.2").exists()) == ([], False)
            (tmp_path / "filling").unlink()
            assert store.reserve(address, ("c1", "eth0"))
    finally:
        unmount(str(tmp_path), lazy=True)


def test_pipes_in_the_place_of_a_pools_files_delay_nobody(tmp_path: Path) -> None:
    store = Store(tmp_path)
    os.mkfifo(tmp_path / "last_reserved_ip.0")
    with store.locked(create=True):
        assert store.reserve(ip_address("10.88.0.2"), ("c1", "eth0"))
        store.set_last(0, ip_address("10.88.0.2"))
        (tmp_path / "lock").unlink()
        os.mkfifo(tmp_path / "lock")
        store.set_boot("a boot")
    with store.locked(create=True):
        assert store.owners() == [("c1", "eth0")]
