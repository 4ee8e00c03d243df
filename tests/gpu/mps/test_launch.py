"""A program with another /dev/shm, wherever it is started: on a node as usual, and in a plain chroot."""

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest
from tests.programs import need

from nodeplug import mount
from nodeplug.contract.mounts import mounts
from nodeplug.testing import folders
from nodeplug.worker.hierarchies import hierarchies
from nodeplug_gpu.mps import launch

pytestmark = pytest.mark.node

SOURCE = str(Path(launch.__file__).parent)
# Everything that Python needs is loaded before the chroot, so the root may be empty.
IN_A_CHROOT = """
import os, sys, ctypes
sys.path.insert(0, sys.argv[1])
import launch
os.chroot(sys.argv[2])
os.chdir("/")
launch.enter("/run/shm")
open("/dev/shm/of-the-daemon", "w").close()
print(*sorted(os.listdir("/dev/shm")), *sorted(os.listdir("/run/shm")))
"""


def shared_tmpfs(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    mount("tmpfs", str(folder), "tmpfs")
    subprocess.run(["mount", "--make-shared", folder], check=True)


@pytest.fixture
def root(short_path: Path) -> Path:
    """A root folder on a shared mount, no mount point itself, with memory to be shared."""
    need("mount")
    shared_tmpfs(short_path / "disk")
    root = short_path / "disk" / "root"
    for name in ("dev/shm", "run/shm"):
        (root / name).mkdir(parents=True)
    mount("tmpfs", str(root / "run/shm"), "tmpfs")
    (root / "run/shm/of-a-client").touch()
    return root


def in_a_chroot(root: Path) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-IS", "-c", IN_A_CHROOT, SOURCE, root], capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("place", ["", "dev", "dev/shm"], ids=["no mount point", "/dev", "/dev/shm"])
def test_a_program_in_a_plain_chroot_has_a_dev_shm_of_its_own(root: Path, short_path: Path, place: str) -> None:
    if place:
        shared_tmpfs(root / place)
        (root / "dev/shm").mkdir(exist_ok=True)
    before = mounts()
    try:
        both = ["of-a-client", "of-the-daemon"]
        assert in_a_chroot(root) == [*both, *both]
        assert mounts() == before, "nothing that was mounted for it is mounted here"
        assert not list((root / "dev/shm").iterdir())
    finally:
        folders.unmount_below(short_path)


def test_the_program_takes_the_place_of_its_launcher_with_its_arguments_and_environment(short_path: Path) -> None:
    (short_path / "shm").mkdir()
    mount("tmpfs", str(short_path / "shm"), "tmpfs")
    try:
        command = [sys.executable, "-IS", launch.__file__, str(short_path / "shm"), ""]
        program = ["sh", "-c", 'echo "$$ $1 $MARK" > /dev/shm/told; exit 7', "sh", "an argument"]
        with subprocess.Popen([*command, *program], env={**os.environ, "MARK": "kept"}) as process:
            assert process.wait() == 7
        assert (short_path / "shm/told").read_text() == f"{process.pid} an argument kept\n"
    finally:
        folders.unmount_below(short_path)


def test_the_program_is_in_the_cgroups_that_it_is_to_enter() -> None:
    own = next((one.folder for one in hierarchies().values() if os.access(one.folder, os.W_OK)), None)
    if own is None:
        pytest.skip("needs a cgroup hierarchy that can be written")
    made = own / f"nodeplug-test-{secrets.token_hex(4)}"
    made.mkdir()
    try:
        command = [sys.executable, "-IS", launch.__file__, "", str(made / "cgroup.procs"), "cat", "/proc/self/cgroup"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        assert f"/{made.name}\n" in said
    finally:
        made.rmdir()


@pytest.mark.programs("setpriv")
def test_a_launcher_that_may_not_mount_says_what_it_could_not_do(short_path: Path, other_user: object) -> None:
    del other_user
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--bounding-set=-all"]
    done = subprocess.run(
        [*command, "/usr/bin/python3", "-IS", "-", short_path, "", "true"],
        input=Path(launch.__file__).read_text(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("true cannot be started with a /dev/shm and cgroups of its own: a mount namespace: ")
