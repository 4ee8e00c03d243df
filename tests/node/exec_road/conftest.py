"""A road in a folder, once with the scripts and once with the compiled entrypoints, and namespaces for its calls.

With the compiled ones its records are in memory, as on a node (/run); with the scripts they are on a disk.
"""

import ctypes
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeplug import bind, mount, unmount
from nodeplug.install.scripts import find_scripts
from nodeplug.testing import ExecRoad


def new_netns(path: Path) -> None:
    """Make a network namespace and keep it at a path."""
    path.touch()

    def unshare() -> None:
        assert ctypes.CDLL(None, use_errno=True).unshare(0x40000000) == 0
        bind("/proc/thread-self/ns/net", str(path))

    thread = threading.Thread(target=unshare)
    thread.start()
    thread.join()


@pytest.fixture
def make_netns(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    made: list[Path] = []

    def make(name: str) -> Path:
        path = tmp_path / name
        new_netns(path)
        made.append(path)
        return path

    yield make
    for path in made:
        unmount(str(path), lazy=True)


@pytest.fixture
def netns(make_netns: Callable[[str], Path]) -> Path:
    return make_netns("netns")


@pytest.fixture(params=["python", "native"])
def road(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ExecRoad]:
    native = request.param == "native"
    if native:
        request.getfixturevalue("has_compiler")
    records = tmp_path / "attachments"
    in_memory = native and os.geteuid() == 0
    if in_memory:
        records.mkdir()
        mount("records", str(records), "tmpfs")
    road = ExecRoad(tmp_path, native=native)
    yield road
    road.stop()
    if in_memory:
        unmount(str(records), lazy=True)


@pytest.fixture
def env(road: ExecRoad, netns: Path) -> Callable[..., dict[str, str]]:
    """Builds the variables of one call; a value of None takes a variable away."""

    def build(verb: str, **more: str | None) -> dict[str, str]:
        full = {
            "CNI_COMMAND": verb,
            "CNI_CONTAINERID": "c1",
            "CNI_NETNS": str(netns),
            "CNI_IFNAME": "eth0",
            "CNI_PATH": str(road.bin),
            **more,
        }
        return {name: value for name, value in full.items() if value is not None}

    return build


@pytest.fixture
def impatient(road: ExecRoad) -> Callable[..., None]:
    """Changes the waits of the entrypoints, in seconds: of those that are installed from then on."""

    def change(*, patience: int = 10, haste: int = 2, timeout: int = 150) -> None:
        _make_impatient(road, patience, haste, timeout)

    return change


def _make_impatient(road: ExecRoad, patience: int, haste: int, timeout: int) -> None:
    road.source = road.bin.with_name("impatient")
    shutil.copytree(find_scripts(), road.source)
    for style, flex in (("cni", False), ("flex", True)):
        script = road.source / f"nodeplug-{style}"
        _edit(script, "\nPATIENCE = 10 " if flex else "\nPATIENCE, HASTE = 10, 2 ", f"\nPATIENCE = {patience} ")
        _edit(script, f"\nTIMEOUT, LIMIT = {660 if flex else 150},", f"\nHASTE = {haste}\nTIMEOUT, LIMIT = {timeout},")
    _edit(road.source / "nodeplug-entrypoint.c", "#define PATIENCE 10 ", f"#define PATIENCE {patience} ")
    _edit(road.source / "nodeplug-entrypoint.c", "#define HASTE 2 ", f"#define HASTE {haste} ")
    _edit(road.source / "nodeplug-entrypoint.c", "(FLEX ? 660 : 150)", f"{timeout}")


def _edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def open_namespaces() -> list[str]:
    found = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found.append(os.readlink(entry))
        except OSError:
            continue
    return sorted(link for link in found if link.startswith("net:["))


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fails when the test leaves a namespace open in this process."""
    before = open_namespaces()
    yield
    assert Counter(open_namespaces()) <= Counter(before)  # one of an earlier test may have been closed meanwhile
