"""The guard of programs: what a test executes it has declared, and without that program it is skipped."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from tests import programs
from tests.programs import PACKAGES

ROOT = Path(__file__).parents[2]
PLAYED = """
import subprocess, sys
import pytest
from tests.programs import need

@pytest.fixture(scope="module")
def mounted():
    need("findmnt")
    subprocess.run(["findmnt", "/"], check=True)

def test_declares_by_its_fixture(mounted): pass
def test_uses_the_fixture_as_well(mounted): subprocess.run(["findmnt", "/"], check=True)
def test_declares_where_it_executes(): need("findmnt"); subprocess.run(["findmnt", "/"], check=True)
@pytest.mark.programs("findmnt")
def test_declares_by_a_mark(): subprocess.run(["findmnt", "/"], check=True)
def test_declares_nothing(): subprocess.run(["/usr/bin/findmnt", "/"], check=False)
def test_declares_nothing_for_a_grandchild(): subprocess.run(["sh", "-c", "findmnt /; true"], check=True)
def test_declares_nothing_for_another_mount_namespace():
    code = "import ctypes, subprocess; ctypes.CDLL(None).unshare(0x20000); subprocess.run(['findmnt', '/'])"
    subprocess.run([sys.executable, "-c", code], check=True)
def test_executes_what_every_machine_has(): subprocess.run(["sh", "-c", "cat /dev/null"], check=True)
"""
OVERFLOWING = """
import subprocess, sys
from tests import descendants
descendants._BUFFER = 64 << 10
try:
    seen = descendants.Descendants()
except OSError:
    sys.exit(3)
for _ in range(300):
    subprocess.run(["true"], check=True)
assert seen.executing() == frozenset()
assert len(seen._lineage._ours) == 1
while subprocess.Popen(["true"]).pid not in seen.executing():
    pass
"""
pytestmark = [pytest.mark.node, pytest.mark.programs("findmnt", "nsenter")]


def play(folder: Path, *options: str) -> str:
    """Run the tests above with the rules of this project; return what pytest says of each."""
    path = folder / "test_played.py"
    path.write_text(PLAYED)
    command = ["-m", "pytest", "-p", "tests.conftest", "-c", str(ROOT / "pyproject.toml"), str(path)]
    environment = {name: value for name, value in os.environ.items() if name != "NODEPLUG_CI"}
    command += ("-v", "-p", "no:cacheprovider", f"--rootdir={ROOT}", *options)
    return run(*command, env=environment).stdout


def run(*arguments: str, env: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
    """Run Python in the machine's network namespace: there alone the kernel says who has started whom."""
    machine = programs.machine_network()
    command = ["nsenter", f"--net=/proc/self/fd/{machine}", sys.executable, *arguments]
    return subprocess.run(command, cwd=ROOT, env=env, pass_fds=[machine], capture_output=True, text=True, check=False)


def outcomes(said: str) -> dict[str, str]:
    """Return the last outcome of each test."""
    return dict(re.findall(r"::test_(\w+) (PASSED|SKIPPED|FAILED|ERROR)", said))


@pytest.mark.whole
def test_a_test_fails_that_executes_what_it_has_not_declared(tmp_path: Path) -> None:
    said = play(tmp_path)
    assert outcomes(said) == {
        "declares_by_its_fixture": "PASSED",
        "uses_the_fixture_as_well": "PASSED",
        "declares_where_it_executes": "PASSED",
        "declares_by_a_mark": "PASSED",
        "declares_nothing": "ERROR",
        "declares_nothing_for_a_grandchild": "ERROR",
        "declares_nothing_for_another_mount_namespace": "ERROR",
        "executes_what_every_machine_has": "PASSED",
    }, said
    assert "declares_nothing executes /usr/bin/findmnt, which neither it nor a fixture of it declares" in said


@pytest.mark.whole
def test_a_test_is_skipped_without_what_it_declares(tmp_path: Path) -> None:
    said = play(tmp_path, "--without", "findmnt")
    skipped = [name for name, outcome in outcomes(said).items() if outcome == "SKIPPED"]
    assert len(skipped) == 4, said
    assert "needs findmnt: apt-get install util-linux" in said
    assert "FileNotFoundError: [Errno 2] No such file or directory: '/usr/bin/findmnt'" in said


@pytest.mark.node
@pytest.mark.whole
def test_hiding_programs_leaves_no_folder_that_a_later_process_of_the_same_number_would_meet(tmp_path: Path) -> None:
    """Costs 0.3 s. Process numbers come again within the thousands of processes of a suite."""
    code = """
import os, shutil
from nodeplug.testing import namespaces
from tests import programs
namespaces.enter(network=True)
for name in ("findmnt", "lsblk"):
    programs.hide([name])
assert shutil.which("findmnt") is shutil.which("lsblk") is None
assert shutil.which("umount")
assert os.listdir(os.environ["TMPDIR"]) == []
"""
    subprocess.run([sys.executable, "-c", code], env={**os.environ, "TMPDIR": str(tmp_path)}, check=True)


def test_continuous_integration_installs_the_package_of_every_program() -> None:
    listed = {line.partition("#")[0].strip() for line in (ROOT / ".ci/debian-packages").read_text().splitlines()}
    essential = {"mount", "util-linux", "make", "git", "openssl", "procps", "mawk", "e2fsprogs", "coreutils"}
    assert {package for packages in PACKAGES.values() for package in packages.split()} - listed - essential == {
        "kubernetes-client"
    }  # any kubectl will do: see .ci/run


@pytest.mark.whole
def test_after_lost_events_no_process_that_has_ended_is_a_descendant_and_new_ones_are_seen() -> None:
    """Else who gets the id of an ended one next, such as another test's container, would be taken for one of ours."""
    done = run("-c", OVERFLOWING)
    if done.returncode == 3:
        pytest.skip("needs the kernel's word on who starts whom, which a container does not get")
    assert done.returncode == 0, done.stderr
