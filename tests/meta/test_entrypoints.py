"""The entrypoint scripts: what they may import, and what an installation rewrites in them."""

import ast
import re
import subprocess
from pathlib import Path

import pytest

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
    assert len(code) <= 120
    assert max(map(len, text.splitlines())) <= 120


def test_both_scripts_speak_the_frame_of_the_daemon() -> None:
    for script in SCRIPTS:
        assert b'b"NPX1"' in (BIN / script).read_bytes()
