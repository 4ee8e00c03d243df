"""Installation from a platform wheel on a node without a compiler, at the places of every node."""

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.platform_wheels import build_wheel
from tests.programs import need

from nodeplug.install.prebuilt import FOLDER
from nodeplug.testing import namespaces

pytestmark = [pytest.mark.node, pytest.mark.whole]

FOLDERS = ("/opt", "/run", "/var/lib", "/etc", "/usr/libexec")
INSIDE = r"""
set -e
export PATH=/usr/sbin:/usr/bin:/sbin:/bin CC=
for folder in {folders}; do mkdir -p $folder; mount -t tmpfs tmpfs $folder; done
mkdir -p /etc/nodeplug
printf '%s\n' 'version = 1' '[supervisor]' '{supervisor}' '[plugins.bridge]' '[plugins.tmpfs]' \
    > /etc/nodeplug/nodeplug.toml
mkdir /run/no-compiler && ln -s /usr/bin/python3 /run/no-compiler
PATH=/run/no-compiler {python} -m nodeplug install --json {words} || exit
CNI_COMMAND=VERSION /opt/cni/bin/nodeplug-bridge
head -n 1 /opt/cni/bin/nodeplug-bridge
"""


@dataclass(frozen=True)
class Installed:
    """A wheel that pip has installed into a folder, in front of everything else that Python finds."""

    folder: Path

    def run(self, *words: str, supervisor: str = "") -> tuple[int, list[str], str]:
        """Install the entrypoints at the usual places, which only the command sees; return status and output."""
        (packages,) = self.folder.glob("lib/python*/site-packages")
        script = INSIDE.format(
            folders=" ".join(FOLDERS), python=sys.executable, words=" ".join(words), supervisor=supervisor
        )
        done = subprocess.run(
            [*namespaces.command(network=False), "/bin/sh", "-c", script],
            env={**os.environ, "PYTHONPATH": str(packages)},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout.splitlines(), done.stderr

    @property
    def program(self) -> Path:
        (found,) = self.folder.glob(f"share/nodeplug/bin/{FOLDER}/*/cni")
        return found


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    machine = os.uname().machine
    need("cc", "mount", "unshare")
    folder = tmp_path_factory.mktemp("installed")
    try:
        wheel = build_wheel(folder, machine)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the compiler with which the programs are made, Debian 12's: {error.stderr}")
    with zipfile.ZipFile(wheel) as packed:
        assert any(name.endswith(f"{FOLDER}/{machine}/cni") for name in packed.namelist())
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--ignore-installed",
        "--no-index",
        "--disable-pip-version-check",
    ]
    subprocess.run([*pip, "--root-user-action", "ignore", "--prefix", str(folder), str(wheel)], check=True)
    return Installed(folder)


def entrypoints(output: list[str]) -> dict[str, Any]:
    """Return what `install --json` says of the entrypoints; it is all but the two last lines."""
    told: dict[str, Any] = json.loads("\n".join(output[:-2]))["entrypoints"]
    return told


def test_a_node_without_a_compiler_gets_the_programs_of_the_wheel(installed: Installed) -> None:
    status, output, errors = installed.run()
    assert (status, errors) == (0, "")
    assert entrypoints(output) == {"kind": "native", "reason": f"built in advance for {os.uname().machine}"}
    assert json.loads(output[-2])["cniVersion"] == "1.1.0"
    assert output[-1].startswith("#!/opt/cni/bin/.nodeplug.")


def test_a_damaged_program_is_not_installed_and_the_script_is(installed: Installed) -> None:
    whole = installed.program.read_bytes()
    installed.program.write_bytes(whole.replace(b"exec.sock", b"evil.sock"))
    try:
        status, output, errors = installed.run()
    finally:
        installed.program.write_bytes(whole)
    assert (status, entrypoints(output)["kind"]) == (0, "script")
    assert "has the sha256" in errors
    assert "the Python scripts are installed instead" in errors
    assert output[-1] == "#!/usr/bin/python3 -IS"


def test_a_damaged_program_is_an_error_where_compiled_ones_are_wanted(installed: Installed) -> None:
    whole = installed.program.read_bytes()
    installed.program.write_bytes(whole[:-1])
    try:
        status, _, errors = installed.run("--native")
    finally:
        installed.program.write_bytes(whole)
    assert status == 1
    assert "reinstall nodeplug" in errors


def test_for_other_paths_than_the_usual_ones_there_is_the_script(installed: Installed) -> None:
    status, output, errors = installed.run(supervisor='exec_socket = "/run/elsewhere/exec.sock"')
    assert (status, errors) == (0, "")
    assert entrypoints(output)["kind"] == "script"
    assert "are for /run/nodeplug/exec.sock and /var/lib/nodeplug/spool" in entrypoints(output)["reason"]
