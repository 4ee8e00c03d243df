"""A road in a folder, and namespaces for its calls.

Its entrypoints are compiled, as on a node, where there is a compiler, and else the scripts: most tests are about what
is behind them. Those of the entrypoints themselves (`test_entrypoint`, `test_driver`, `test_daemon_stopped`) run with
each, and `test_twins` compares the two.
"""

import ctypes
import os
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.own_descriptors import open_namespaces
from tests.programs import need

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


@pytest.fixture(scope="session")
def common_path() -> Iterator[Path]:
    """A path that every test of this process leads to its own folder: what is compiled for it serves them all."""
    with tempfile.TemporaryDirectory(prefix="np-road-", dir="/tmp") as folder:
        Path(folder).chmod(0o711)  # tests become other users
        yield Path(folder) / "r"


@pytest.fixture
def road_folder(common_path: Path, tmp_path: Path) -> Iterator[Path]:
    common_path.symlink_to(tmp_path)
    yield common_path
    common_path.unlink()


@pytest.fixture
def records(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """The road's records are in memory, as on a node (/run), unless the test says "disk" or has no right to mount."""
    path = tmp_path / "attachments"
    in_memory = getattr(request, "param", "memory") == "memory" and os.geteuid() == 0
    if in_memory:
        path.mkdir()
        mount("records", str(path), "tmpfs")
    yield
    if in_memory:
        unmount(str(path), lazy=True)


@pytest.fixture
def road(
    request: pytest.FixtureRequest, road_folder: Path, records: None, compiler_or_none: bool
) -> Iterator[ExecRoad]:
    """A road with the entrypoint that the test asks for, else with the one that this machine would install."""
    kind = getattr(request, "param", "compiled" if compiler_or_none else "script")
    if kind == "compiled":
        need("cc")
    road = ExecRoad(road_folder, native=kind == "compiled")
    yield road
    road.stop()


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

    def change(*, patience: float = 10, haste: float = 2, timeout: int = 150) -> None:
        _make_impatient(road, patience, haste, timeout)

    return change


def _make_impatient(road: ExecRoad, patience: float, haste: float, timeout: int) -> None:
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


@pytest.fixture
def no_leak() -> Iterator[None]:
    """Fails when the test leaves a namespace open in this process."""
    before = open_namespaces()
    yield
    assert Counter(open_namespaces()) <= Counter(before)  # one of an earlier test may have been closed meanwhile
