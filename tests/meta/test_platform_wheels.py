"""Platform wheels: their programs are those that are listed, and the same wherever they are compiled."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from tests.platform_wheels import ROOT, build_wheel
from tests.programs import need
from tests.suites import divided

from nodeplug.install.native import LINKINGS
from nodeplug.install.prebuilt import FOLDER, LIST, STYLES

sys.path.insert(0, str(ROOT / "deploy"))
import platform_wheel

NAMED = {"x86_64-linux-gnu-gcc": "gcc"} if os.uname().machine == "x86_64" else {}
"""What Debian calls the compiler for the machine that this is."""
MACHINES = divided(platform_wheel.COMPILERS, {"x86_64"})


def needs_compiler_of(machine: str) -> None:
    compiler = platform_wheel.COMPILERS[machine]
    need(NAMED.get(compiler, compiler))
    said = subprocess.run([compiler, "-dumpfullversion"], capture_output=True, text=True, check=True).stdout
    if not said.startswith("12."):
        pytest.skip(f"needs the compiler with which the programs are made, Debian 12's, and this is {said.strip()}")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_is_the_same_wherever_it_is_compiled(machine: str, style: str, tmp_path: Path) -> None:
    needs_compiler_of(machine)
    elsewhere = tmp_path / "another folder"
    shutil.copytree(ROOT / "bin", elsewhere)
    made = platform_wheel.compile_program(elsewhere, machine, style, tmp_path / "made")
    assert made == platform_wheel.listed(ROOT / "bin")[f"{machine}/{style}"], (
        "the source has changed: run `make prebuilt`"
    )


@pytest.mark.whole
@pytest.mark.parametrize("machine", MACHINES)
def test_the_wheel_of_a_machine_holds_its_programs_and_says_where_it_fits(machine: str, tmp_path: Path) -> None:
    needs_compiler_of(machine)
    wheel = build_wheel(tmp_path, machine)
    assert wheel.name.endswith(f"-py3-none-manylinux2014_{machine}.musllinux_1_1_{machine}.whl")
    inside = [one for one in zipfile.ZipFile(wheel).infolist() if f"/{FOLDER}/" in one.filename]
    assert [one.filename.rpartition(f"/{FOLDER}/")[2] for one in inside] == [f"{machine}/{style}" for style in STYLES]
    assert all(one.external_attr >> 16 & 0o111 == 0o111 for one in inside)
    assert any(name.endswith(f"/share/nodeplug/bin/{LIST}") for name in zipfile.ZipFile(wheel).namelist())


def test_a_program_that_is_not_listed_is_not_packed(tmp_path: Path) -> None:
    needs_compiler_of("x86_64")
    with pytest.raises(subprocess.CalledProcessError) as raised:
        build_wheel(tmp_path, "x86_64", CC_X86_64="x86_64-linux-gnu-gcc '-DSOCKET=\"/s\"'")
    assert "x86_64/cni has the sha256" in str(raised.value.stderr)


def test_an_unknown_machine_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(subprocess.CalledProcessError) as raised:
        build_wheel(tmp_path, "mips")
    assert "NODEPLUG_WHEEL_MACHINE is 'mips'; it can be: x86_64, aarch64" in str(raised.value.stderr)


def test_what_a_node_compiles_and_what_is_brought_along_are_linked_alike() -> None:
    assert set(LINKINGS[0]) <= set(platform_wheel.OPTIONS.split())
