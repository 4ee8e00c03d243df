"""The entrypoint scripts: what they may import, and what an installation rewrites in them."""

import ast
import errno
import os
import re
import subprocess
from pathlib import Path

import pytest

from nodeplug.install.native import FREESTANDING, LINKINGS, SOURCE, compiler
from nodeplug.install.scripts import MARKER, Scripts

BIN = Path(__file__).parents[2] / "bin"
SCRIPTS = ("nodeplug-cni", "nodeplug-flex")
INTERPRETER = "/usr/bin/python3"


def imported(text: str) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def builtin() -> set[str]:
    code = "import sys; print(*sys.builtin_module_names)"
    return set(
        subprocess.run([INTERPRETER, "-IS", "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_imports_only_what_is_compiled_into_the_interpreter(script: str) -> None:
    assert imported((BIN / script).read_text()) <= builtin()


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_loads_no_module_from_a_file(script: str) -> None:
    done = subprocess.run([INTERPRETER, "-ISv", str(BIN / script)], capture_output=True, env={}, check=False)
    # Beyond `encodings`, which every start of the interpreter needs. flex silences its stderr before the rest of its
    # imports; the test above covers those.
    opened = re.findall(r"^# code object from '(.*)'", done.stderr.decode(), re.MULTILINE)
    assert [path for path in opened if "/encodings/" not in path] == []


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_runs_under_the_isolated_system_interpreter(script: str) -> None:
    path = BIN / script
    assert path.read_text().startswith("#!/usr/bin/python3 -IS\n")
    assert path.stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize(
    ("script", "name"), [("nodeplug-cni", "SOCKET"), ("nodeplug-cni", "SPOOL"), ("nodeplug-flex", "SOCKET")]
)
def test_a_constant_that_an_installation_rewrites_stands_on_one_line(script: str, name: str) -> None:
    assert len(re.findall(rf'^{name} = "[^"\n]*"$', (BIN / script).read_text(), re.MULTILINE)) == 1


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_stays_small_and_ascii(script: str) -> None:
    text = (BIN / script).read_text()
    code = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    assert text.isascii()
    assert len(code) <= 140
    assert max(map(len, text.splitlines())) <= 120


def test_both_scripts_speak_the_frame_of_the_daemon() -> None:
    for script in SCRIPTS:
        assert b'b"NPX1"' in (BIN / script).read_bytes()


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    path = tmp_path / "installed"
    path.write_bytes(Scripts.render(socket="/s", spool="/p").cni)
    path.chmod(0o755)
    return path


def test_an_installed_script_loads_no_module_from_a_file(installed: Path) -> None:
    done = subprocess.run([INTERPRETER, "-ISv", str(installed)], capture_output=True, env={}, check=False)
    opened = re.findall(r"^# code object from '(.*)'", done.stderr.decode(), re.MULTILINE)
    assert [path for path in opened if "/encodings/" not in path] == []


def test_an_installed_script_runs_under_an_interpreter_of_another_bytecode(installed: Path) -> None:
    text = installed.read_text()
    foreign = re.sub(r"MAGIC_NUMBER == b'.*?'", "MAGIC_NUMBER == b'\\\\x00\\\\x00\\\\x00\\\\x00'", text)
    foreign = re.sub(r"fromhex\('.*?'\)", "fromhex('ff')", foreign)
    assert foreign != text
    installed.write_text(foreign)
    done = subprocess.run([installed], capture_output=True, env={"CNI_COMMAND": "VERSION"}, check=True)
    assert done.stdout.startswith(b'{"cniVersion":')


# --- the twin in C ----------------------------------------------------------------------------------------------


def constant(text: str, name: str) -> str:
    (found,) = re.findall(rf'^(?:#define )?{name}(?: = | )(".*")$', text, re.MULTILINE)
    return str(found)


@pytest.mark.parametrize("name", ["SOCKET", "SPOOL"])
def test_the_twin_has_the_constants_of_the_script(name: str) -> None:
    assert constant((BIN / SOURCE).read_text(), name) == constant((BIN / "nodeplug-cni").read_text(), name)


def test_the_twin_bears_the_marker() -> None:
    assert MARKER in (BIN / SOURCE).read_bytes()


@pytest.mark.parametrize(("name", "most"), [(SOURCE, 390), (FREESTANDING, 240)])
def test_the_twin_stays_small_and_ascii(name: str, most: int) -> None:
    text = (BIN / name).read_text()
    assert text.isascii()
    assert len(text.splitlines()) <= most
    assert max(map(len, text.splitlines())) <= 120


def test_without_a_library_the_twin_knows_its_words_for_errors() -> None:
    known = re.findall(r'^        \{(E[A-Z]+), "(.*)"\},$', (BIN / FREESTANDING).read_text(), re.MULTILINE)
    assert len(known) > 20
    assert [(name, os.strerror(getattr(errno, name))) for name, _ in known] == known


@pytest.mark.programs("cc")
@pytest.mark.parametrize("flex", [0, 1])
@pytest.mark.parametrize("linking", LINKINGS[:2], ids=["alone", "static"])
def test_the_twin_compiles_without_a_warning(flex: int, linking: list[str], tmp_path: Path) -> None:
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"]
    target = [f"-DFLEX={flex}", "-o", str(tmp_path / "twin"), str(BIN / SOURCE)]
    done = subprocess.run([*compiler(), *options, *linking, *target], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
