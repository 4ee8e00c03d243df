"""A daemon whose state folder, or another one, is a filesystem that a test freezes."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.node.frozen_disk.freezing import NET, thaw_if_frozen
from tests.programs import need

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

PLUGIN = """
import pathlib

from nodeplug import CniClaim, CniResult, Device, DeviceClaim, DeviceId, Grant, TryAgain, hookimpl

class Net:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [CniClaim("nodeplug-net"), DeviceClaim("example.com/thing")]

    @hookimpl
    def device_list(self):
        return [Device(DeviceId(name), grant=Grant(env={"THING": name})) for name in ("one", "two")]

    @hookimpl
    def cni_add(self, request):
        return CniResult()

    @hookimpl
    def cni_del(self, request):
        if not pathlib.Path(__file__).with_name("works").exists():
            raise TryAgain("it does not work yet")
"""


STAGER = """
from nodeplug import VolumeClaim, hookimpl, mount

class Stager:
    def __init__(self, config, host):
        pass

    @hookimpl
    def claims(self):
        return [VolumeClaim("scratch/stager")]

    @hookimpl
    def volume_stage(self, request):
        mount("scratch", request.staging_path, "tmpfs")
"""


@pytest.fixture(scope="session")
def code(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the plugins: one for all daemons, so that one process forks them."""
    folder = tmp_path_factory.mktemp("code")
    (folder / "net.py").write_text(PLUGIN)
    (folder / "stager.py").write_text(STAGER)
    return folder


@pytest.fixture
def works(code: Path) -> Iterator[Path]:
    """The file with which a DEL succeeds."""
    yield code / "works"
    (code / "works").unlink(missing_ok=True)


@pytest.fixture
def make_disk(has_loop_devices: None, tmp_path: Path, short_path: Path) -> Iterator[Callable[[str], Path]]:
    """Mount a filesystem of its own at a folder of the node."""
    made: list[Path] = []

    def make(below: str) -> Path:
        folder = short_path / below
        _mount(tmp_path / f"image{len(made)}", folder)
        made.append(folder)
        return folder

    yield make
    for folder in made:
        thaw_if_frozen(folder)
        subprocess.run(["umount", "-l", folder], check=True)


def _mount(image: Path, folder: Path) -> None:
    need("mkfs.ext4", "mount", "umount", "fsfreeze")
    folder.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, folder], check=True)


@pytest.fixture
def disk(make_disk: Callable[[str], Path]) -> Path:
    return make_disk("var/lib/nodeplug")


@pytest.fixture
def node(disk: Path, short_path: Path, code: Path) -> Iterator[ScratchNode]:
    supervisor = 'listen = ""\ninstall = true\nnative_entrypoints = false\n'
    made = ScratchNode(short_path, NET, supervisor=supervisor, env={"PYTHONPATH": str(code)}, fork=True)
    made.start()
    until((made.paths.cni_bin / "nodeplug-net").exists)  # a slow installation goes on behind the start
    yield made
    # A thread that a disk holds keeps even a killed process: thaw first.
    for folder in (disk, made.paths.attachments):
        thaw_if_frozen(folder)
    made.kill()
