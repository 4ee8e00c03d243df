"""Each kind of thing that a pod can leave behind shows up in the inventory, and is gone from it when it is gone."""

import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest
from pyroute2 import IPRoute
from tests.programs import need

from nodeplug import Netns, mount, unmount
from nodeplug.testing import Inventory, Sandbox, leaves_nothing
from nodeplug.testing.inventory import describe

PREFIX = f"nodeplug-inventory-{os.getpid()}"
Thing = Callable[[Path], AbstractContextManager[str]]


def run(*command: str) -> str:
    need(command[0])
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def run_nft(*words: str) -> str:
    return run("nft", *words)


@pytest.fixture
def inside(short_path: Path) -> Iterator[None]:
    """The test runs in a network namespace of its own."""
    with Sandbox(short_path / "netns") as sandbox, closing(Netns.open(str(sandbox.path))) as netns, netns.entered():
        yield


@contextmanager
def link(folder: Path) -> Iterator[str]:
    with IPRoute() as route:
        route.link("add", ifname="left0", kind="bridge")
        yield "link left0"
        route.link("delete", ifname="left0")


@contextmanager
def at_loopback(address: str, length: int) -> Iterator[None]:
    with IPRoute() as route:
        where = {"index": route.link_lookup(ifname="lo")[0], "address": address, "prefixlen": length}
        route.addr("add", **where)
        yield
        route.addr("delete", **where)


@contextmanager
def address(folder: Path) -> Iterator[str]:
    with at_loopback("192.0.2.7", 24):
        yield "address 192.0.2.7/24 on lo"


@contextmanager
def address_of_version_6(folder: Path) -> Iterator[str]:
    with at_loopback("fd00::7", 64):
        yield "address fd00::7/64 on lo"


@contextmanager
def mounted(folder: Path) -> Iterator[str]:
    target = folder / "target"
    target.mkdir()
    mount("none", str(target), "tmpfs")
    yield f"mount tmpfs on {target}"
    unmount(str(target))
    target.rmdir()


@contextmanager
def loop_device(folder: Path) -> Iterator[str]:
    image = folder / "image"
    image.write_bytes(bytes(1 << 20))
    device = Path(run("losetup", "--find", "--show", str(image)))
    yield f"loop device {device.name} of {image}"
    run("losetup", "--detach", str(device))
    image.unlink()


@contextmanager
def nftables(statement: str, entry: str) -> Iterator[str]:
    run_nft("add table inet left; add chain inet left ways; add set inet left who { type ipv4_addr; }; " + statement)
    yield entry
    run_nft("delete table inet left")


@contextmanager
def cgroup(folder: Path) -> Iterator[str]:
    writable = [tree for tree in ("memory", "") if os.access(f"/sys/fs/cgroup/{tree}/cgroup.procs", os.W_OK)]
    if not writable:
        pytest.skip("needs control groups that can be written")
    path = Path("/sys/fs/cgroup", writable[0], PREFIX, "pod")
    path.mkdir(parents=True)
    yield f"cgroup {path}"
    path.rmdir()
    path.parent.rmdir()


@contextmanager
def file(folder: Path) -> Iterator[str]:
    path = folder / "journal" / "entry"
    path.parent.mkdir()
    path.touch()
    yield f"file {path}"
    path.unlink()
    path.parent.rmdir()


@contextmanager
def symlink(folder: Path) -> Iterator[str]:
    path = folder / "dangling"
    path.symlink_to("nowhere")
    yield f"symlink {path}"
    path.unlink()


@contextmanager
def listening_socket(folder: Path) -> Iterator[str]:
    path = folder / "s.sock"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
    yield f"socket {path}"
    path.unlink()


THINGS: dict[str, Thing] = {
    "link": link,
    "address": address,
    "IPv6 address": address_of_version_6,
    "mount": mounted,
    "loop device": loop_device,
    "nft table": lambda _: nftables("", "nft table left"),
    "nft chain": lambda _: nftables("", "nft chain left ways"),
    "nft set": lambda _: nftables("", "nft set left who"),
    "nft element": lambda _: nftables("add element inet left who { 192.0.2.9 }", "nft element left who 192.0.2.9"),
    "cgroup": cgroup,
    "file": file,
    "symlink": symlink,
    "socket": listening_socket,
}


@pytest.mark.usefixtures("inside")
@pytest.mark.parametrize("thing", THINGS.values(), ids=THINGS)
def test_what_is_made_is_told_and_what_is_removed_is_not(
    request: pytest.FixtureRequest, thing: Thing, short_path: Path
) -> None:
    if thing is loop_device:
        request.getfixturevalue("has_loop_devices")
    folder = short_path / "watched"
    folder.mkdir()
    before = Inventory.take(folder, cgroups=PREFIX)
    with thing(folder) as entry:
        assert f"+ {entry}" in Inventory.take(folder, cgroups=PREFIX).since(before)
    assert f"+ {entry}" not in Inventory.take(folder, cgroups=PREFIX).since(before)


@pytest.mark.usefixtures("inside")
def test_a_rule_is_told_by_its_handle(short_path: Path) -> None:
    run_nft("add table inet left; add chain inet left ways")
    before = Inventory.take()
    handle = re.search(r"handle (\d+)", run_nft("--echo", "--handle", "add rule inet left ways accept"))
    assert handle is not None
    assert f"+ nft rule left {handle[1]}" in Inventory.take().since(before)


@pytest.mark.usefixtures("inside")
def test_what_went_is_told_too(short_path: Path) -> None:
    with link(short_path):
        before = Inventory.take()
    assert "- link left0" in Inventory.take().since(before)


def test_a_difference_reads_as_what_is_left_and_what_is_lost() -> None:
    text = "left behind:\n  file /a\n  link veth1\nlost:\n  mount tmpfs on /b"
    assert describe(["- mount tmpfs on /b", "+ link veth1", "+ file /a"]) == text


def test_a_block_that_leaves_a_file_fails_with_its_name(short_path: Path) -> None:
    with pytest.raises(AssertionError, match=f"left behind:\n.*  file {short_path}/left"), leaves_nothing(short_path):
        (short_path / "left").touch()


@pytest.mark.usefixtures("inside")
def test_a_missing_folder_is_an_empty_one(short_path: Path) -> None:
    folder = short_path / "later"
    before = Inventory.take(folder)
    folder.mkdir()
    (folder / "file").touch()
    assert f"+ file {folder}/file" in Inventory.take(folder).since(before)
