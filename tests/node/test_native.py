"""`nodeplug install --native`: compiled entrypoints in the place of the scripts, and back."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from nodeplug.errors import NotFound, PluginError
from nodeplug.install.native import compile_one, compiler
from nodeplug.install.scripts import is_ours
from nodeplug.testing.scratch_node import ScratchNode

PLUGINS = "[plugins.bridge]\n[plugins.tmpfs]\n"
ELF = b"\x7fELF"


@pytest.fixture
def node(tmp_path: Path) -> ScratchNode:
    return ScratchNode(tmp_path, PLUGINS)


@pytest.fixture
def has_compiler() -> None:
    try:
        compiler()
    except NotFound:
        pytest.skip("needs a C compiler: apt-get install gcc libc6-dev")


def entrypoints(node: ScratchNode) -> tuple[Path, Path]:
    return node.paths.cni_bin / "nodeplug-bridge", node.paths.flexvolume / "nodeplug~tmpfs" / "tmpfs"


def kinds(node: ScratchNode) -> set[bytes]:
    return {path.read_bytes()[:4] for path in entrypoints(node)}


def without_compiler(tmp_path: Path) -> ScratchNode:
    return ScratchNode(tmp_path, PLUGINS, env={"CC": "", "PATH": str(tmp_path)})


@pytest.mark.usefixtures("has_compiler")
def test_native_entrypoints_answer_alone(node: ScratchNode) -> None:
    done = node.run("install", "--native")
    assert (done.returncode, done.stderr) == (0, "")
    assert kinds(node) == {ELF}
    cni, flex = entrypoints(node)
    assert b"1.1.0" in subprocess.run([cni], env={"CNI_COMMAND": "VERSION"}, capture_output=True, check=True).stdout
    assert b"Success" in subprocess.run([flex, "init"], capture_output=True, check=True).stdout


@pytest.mark.usefixtures("has_compiler")
def test_second_native_install_changes_nothing(node: ScratchNode) -> None:
    node.run("install", "--native")
    before = {path: path.lstat().st_ctime_ns for path in node.root.glob("*/**/*") if "opt" in path.parts}
    node.run("install", "--native")
    assert before == {path: path.lstat().st_ctime_ns for path in node.root.glob("*/**/*") if "opt" in path.parts}


@pytest.mark.usefixtures("has_compiler")
def test_scripts_and_programs_replace_each_other_as_ours(node: ScratchNode) -> None:
    for arguments, expected in (((), b"#!/u"), (("--native",), ELF), ((), b"#!/u")):
        assert node.run("install", *arguments).returncode == 0
        assert kinds(node) == {expected}


@pytest.mark.usefixtures("has_compiler")
def test_uninstall_removes_programs(node: ScratchNode) -> None:
    node.run("install", "--native")
    assert node.run("uninstall").returncode == 0
    assert list(node.paths.cni_bin.iterdir()) == []
    assert list(node.paths.flexvolume.iterdir()) == []


@pytest.mark.usefixtures("has_compiler")
def test_the_configuration_can_ask_for_programs(tmp_path: Path) -> None:
    node = ScratchNode(tmp_path, PLUGINS, supervisor='listen = ""\nnative_entrypoints = true')
    assert node.run("install").returncode == 0
    assert kinds(node) == {ELF}


@pytest.mark.usefixtures("has_compiler")
def test_the_daemon_installs_programs_when_it_is_told_to(tmp_path: Path) -> None:
    node = ScratchNode(tmp_path, PLUGINS, supervisor='listen = ""\ninstall = true\nnative_entrypoints = true')
    node.start()
    try:
        assert kinds(node) == {ELF}
    finally:
        node.stop()


def test_without_a_compiler_it_says_what_is_missing_and_what_works_instead(tmp_path: Path) -> None:
    done = without_compiler(tmp_path).run("install", "--native")
    assert done.returncode == 1
    assert "C compiler 'cc' is not on PATH" in done.stderr
    assert "gcc and libc6-dev" in done.stderr
    assert "Python scripts do the same" in done.stderr


def test_without_a_compiler_nothing_is_changed(tmp_path: Path) -> None:
    node = without_compiler(tmp_path)
    node.run("install")
    before = {path: path.read_bytes() for path in entrypoints(node)}
    node.run("install", "--native")
    assert before == {path: path.read_bytes() for path in entrypoints(node)}


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(tmp_path / "cc", "echo no rule for this >&2; exit 1")
    monkeypatch.setenv("CC", f"{tmp_path}/cc --some-option")
    with pytest.raises(PluginError, match=r"cannot compile .*: no rule for this; without --native"):
        compile_one(flex=False, socket="/s", spool="/p")


@pytest.mark.usefixtures("has_compiler")
def test_without_a_static_c_library_it_links_dynamically(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = shutil.which(compiler()[0])
    fake(tmp_path / "cc", f'for one in "$@"; do [ "$one" = -static ] && exit 1; done; exec {real} "$@"')
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    program = compile_one(flex=False, socket="/s", spool="/p")
    assert is_ours(program)
    assert b"ld-linux" in program or b"ld64" in program


@pytest.mark.usefixtures("has_compiler")
@pytest.mark.parametrize("path", ['/a "quoted" path', "/back\\slash\\1", "/gr\u00fc\u00dfe/1", "/new\nline", "/??/x"])
def test_any_path_survives_as_a_c_literal(tmp_path: Path, path: str) -> None:
    program = tmp_path / "program"
    program.write_bytes(compile_one(flex=False, socket="/s", spool=path))
    assert os.fsencode(path) in program.read_bytes()


@pytest.mark.usefixtures("has_compiler")
def test_a_socket_path_that_no_socket_can_have_is_refused() -> None:
    compile_one(flex=False, socket="/" + "s" * 106, spool="/p")
    with pytest.raises(PluginError, match="more than 107 bytes"):
        compile_one(flex=False, socket="/" + "s" * 107, spool="/p")


def fake(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
