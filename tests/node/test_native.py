"""Compiled entrypoints where the node has a compiler, scripts where it has none, and each in the other's place."""

import json
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from nodeplug.contract.errors import PluginError
from nodeplug.install.atomic import wait_for_writers
from nodeplug.install.deployment import deploy, inspect
from nodeplug.install.native import LINKINGS, SOURCE, compile_one, compiler
from nodeplug.install.scripts import find_scripts, is_ours, leader
from nodeplug.testing.scratch_node import ScratchNode

pytestmark = pytest.mark.unprivileged

PLUGINS = '[plugins.bridge]\nisolation = "thread"\n[plugins.tmpfs]\n'
VERSION = {"CNI_COMMAND": "VERSION"}


@pytest.fixture(scope="module")
def common_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The path of every node here, so that what is compiled for one is as good for the next."""
    return tmp_path_factory.mktemp("native") / "root"


@pytest.fixture
def node(common_root: Path, tmp_path: Path, compiler_or_none: bool) -> Iterator[ScratchNode]:
    """A node that has compiled its entrypoints before, if a test did."""
    common_root.symlink_to(tmp_path)
    node, kept = ScratchNode(common_root, PLUGINS), common_root.with_name("kept")
    compiled = node.paths.state / "compiled"
    if kept.exists():
        shutil.copytree(kept, compiled)
    yield node
    if compiled.exists() and not kept.exists():
        shutil.copytree(compiled, kept)
    common_root.unlink()


def entrypoints(node: ScratchNode) -> tuple[Path, Path]:
    return node.paths.cni_bin / "nodeplug-bridge", node.paths.flexvolume / "nodeplug~tmpfs" / "tmpfs"


def kinds(node: ScratchNode) -> set[str]:
    led = [leader(path.read_bytes()) for path in entrypoints(node)]
    return {"native" if is_ours(path.read_bytes()) else path.name for path in led}


def without_compiler(tmp_path: Path, supervisor: str = 'listen = ""') -> ScratchNode:
    return ScratchNode(tmp_path, PLUGINS, supervisor=supervisor, env={"CC": "", "PATH": str(tmp_path)})


def with_broken_compiler(tmp_path: Path, supervisor: str = 'listen = ""') -> ScratchNode:
    fake(tmp_path / "cc", "echo no rule for this >&2; exit 1")
    return ScratchNode(tmp_path, PLUGINS, supervisor=supervisor, env={"CC": str(tmp_path / "cc")})


@pytest.mark.usefixtures("has_compiler")
def test_native_entrypoints_answer_alone(node: ScratchNode) -> None:
    done = node.run("install", "--native")
    assert (done.returncode, done.stderr) == (0, "")
    assert kinds(node) == {"native"}
    cni, flex = entrypoints(node)
    assert b"1.1.0" in subprocess.run([cni], env=VERSION, capture_output=True, check=True).stdout
    assert b"Success" in subprocess.run([flex, "init"], capture_output=True, check=True).stdout


@pytest.mark.usefixtures("has_compiler")
def test_second_native_install_changes_nothing(node: ScratchNode) -> None:
    node.run("install", "--native")
    before = {path: path.lstat().st_ctime_ns for path in node.root.glob("*/**/*") if "opt" in path.parts}
    node.run("install", "--native")
    assert before == {path: path.lstat().st_ctime_ns for path in node.root.glob("*/**/*") if "opt" in path.parts}


@pytest.mark.usefixtures("has_compiler")
def test_scripts_and_programs_replace_each_other_as_ours(node: ScratchNode) -> None:
    for arguments, expected in (("--script", "python3"), ("--native", "native"), ("--script", "python3")):
        assert node.run("install", arguments).returncode == 0
        assert kinds(node) == {expected}


@pytest.mark.usefixtures("has_compiler")
def test_uninstall_removes_programs(node: ScratchNode) -> None:
    node.run("install", "--native")
    assert node.run("uninstall").returncode == 0
    assert list(node.paths.cni_bin.iterdir()) == []
    assert list(node.paths.flexvolume.iterdir()) == []


@pytest.mark.usefixtures("has_compiler")
def test_the_configuration_can_ask_for_programs(node: ScratchNode) -> None:
    node = ScratchNode(node.root, PLUGINS, supervisor='listen = ""\nnative_entrypoints = true')
    assert node.run("install").returncode == 0
    assert kinds(node) == {"native"}


@pytest.mark.usefixtures("has_compiler")
def test_the_configuration_can_refuse_programs(tmp_path: Path) -> None:
    node = ScratchNode(tmp_path, PLUGINS, supervisor='listen = ""\nnative_entrypoints = false')
    assert node.run("install").returncode == 0
    assert kinds(node) == {"python3"}


@pytest.mark.usefixtures("has_compiler")
def test_by_default_a_node_with_a_compiler_has_programs_and_says_so(node: ScratchNode) -> None:
    done = node.run("install")
    assert kinds(node) == {"native"}
    assert "entrypoints: native (compiled with cc)" in done.stdout


def test_by_default_a_node_without_a_compiler_has_scripts_and_says_why(tmp_path: Path) -> None:
    node = without_compiler(tmp_path)
    done = node.run("install", "--json")
    assert (done.returncode, done.stderr, kinds(node)) == (0, "", {"python3"})
    chosen = json.loads(done.stdout)["entrypoints"]
    assert chosen["kind"] == "script"
    assert "C compiler 'cc' is not on PATH" in chosen["reason"]


def test_by_default_a_compiler_that_fails_is_warned_about_and_scripts_are_installed(tmp_path: Path) -> None:
    node = with_broken_compiler(tmp_path)
    done = node.run("install")
    assert (done.returncode, kinds(node)) == (0, {"python3"})
    assert "warning:" in done.stderr
    assert "no rule for this" in done.stderr


def test_compiler_for_another_machine_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(
        tmp_path / "cc",
        'for one in "$@"; do last=$one; done; echo "\x7fELF of another machine" > $last; chmod +x $last',
    )
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    with pytest.raises(PluginError, match="does not run on this node"):
        compile_one(flex=False, socket="/s", spool="/p")


@pytest.mark.usefixtures("has_compiler")
@pytest.mark.parametrize("flex", [False, True])
def test_a_program_without_a_library_is_made_where_that_is_known_to_work(flex: bool, tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(compile_one(flex=flex, socket="/s", spool="/p"))
    assert program.stat().st_size < 50_000


@pytest.mark.usefixtures("has_compiler")
@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param("exit 1", marks=pytest.mark.whole),  # as without a static library, of which a test follows
        "echo '#!/bin/false' > $last; chmod +x $last; exit",
    ],
)
def test_a_program_with_a_library_is_made_elsewhere(
    trouble: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, last = shutil.which(compiler()[0]), 'for one in "$@"; do last=$one; done'
    fake(tmp_path / "cc", f'{last}; case "$*" in *FREESTANDING*) {trouble};; esac; exec {real} "$@"')
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    assert len(compile_one(flex=False, socket="/s", spool="/p")) > 50_000


@pytest.mark.whole
@pytest.mark.programs("aarch64-linux-gnu-gcc", "qemu-aarch64")
def test_the_program_answers_on_arm64(tmp_path: Path) -> None:
    program, source = tmp_path / "program", find_scripts() / SOURCE
    options = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", *LINKINGS[0], f'-DSOCKET="{tmp_path}/away"']
    subprocess.run(["aarch64-linux-gnu-gcc", *options, source, "-o", program], check=True)

    def answer(verb: str) -> str:
        call = ["qemu-aarch64", str(program)]
        done = subprocess.run(call, env={"CNI_COMMAND": verb}, capture_output=True, text=True, check=False)
        return done.stdout

    assert json.loads(answer("VERSION"))["cniVersion"] == "1.1.0"
    expected = (
        f"the nodeplug daemon does not answer at {tmp_path}/away: No such file or directory; start it, or see its log"
    )
    assert json.loads(answer("STATUS")) == {"code": 50, "msg": expected}


@pytest.mark.usefixtures("has_compiler")
def test_folder_that_no_first_line_can_name_has_scripts(tmp_path: Path) -> None:
    node = ScratchNode(tmp_path, PLUGINS, supervisor='listen = ""\ncni_bin_dir = "/my bin"')
    done = node.run("install")
    assert (done.returncode, kinds(node)) == (0, {"python3"})
    assert "blanks or is too long" in done.stderr


@pytest.mark.whole
@pytest.mark.usefixtures("has_compiler")
def test_nothing_is_compiled_twice(node: ScratchNode, tmp_path: Path) -> None:
    node.run("install")
    programs = {path.name for path in (node.paths.state / "compiled").iterdir()}
    real = shutil.which(compiler()[0])
    fake(tmp_path / "cc", f'echo called >> {tmp_path}/calls; exec {real} "$@"')
    counting = ScratchNode(tmp_path, PLUGINS, env={"CC": str(tmp_path / "cc")})
    for _ in range(2):
        assert counting.run("install").returncode == 0
    assert (tmp_path / "calls").read_text().count("called") == 2  # one per style
    assert {path.name for path in (node.paths.state / "compiled").iterdir()}.isdisjoint(programs)


@pytest.mark.usefixtures("has_compiler")
def test_uninstall_forgets_what_was_compiled(node: ScratchNode) -> None:
    node.run("install")
    node.run("uninstall")
    assert not (node.paths.state / "compiled").exists()


@pytest.mark.usefixtures("has_compiler")
@pytest.mark.parametrize("age", [0, 100])
def test_superseded_program_stays_for_calls_that_are_about_to_start_it(node: ScratchNode, age: int) -> None:
    node.run("install", "--native")
    node.run("install", "--script")
    programs = [path for folder in entrypoints(node) for path in folder.parent.glob(".nodeplug.*")]
    assert len(programs) == 2
    for path in (*entrypoints(node), *programs):
        os.utime(path, (time.time() - age, time.time() - age))
    node.run("install", "--script")
    assert all(path.exists() for path in programs) == (age == 0)


@pytest.mark.usefixtures("has_compiler")
@pytest.mark.parametrize("turns", [10, pytest.param(60, marks=pytest.mark.soak)])
def test_no_call_fails_while_script_and_program_change_places(node: ScratchNode, turns: int) -> None:
    node.run("install", "--script")
    ended = threading.Event()
    failed: list[str] = []

    def call() -> None:
        cni, flex = entrypoints(node)
        while not ended.is_set():
            for command, mark in (([str(cni)], b"1.1.0"), ([str(flex), "init"], b"Success")):
                done = subprocess.run(command, env=VERSION, capture_output=True, check=False)
                if mark not in done.stdout:
                    failed.append(f"{done}")

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    registry, paths = inspect(node.configuration), node.paths
    for turn in range(turns):
        deploy(registry, paths, native=turn % 2 == 0)
    ended.set()
    for thread in threads:
        thread.join()
    assert failed == []


def test_a_file_is_put_in_its_place_once_nobody_writes_it_any_more(tmp_path: Path) -> None:
    path = tmp_path / "program"
    path.write_bytes(b"#!/bin/true\n")
    path.chmod(0o755)
    # A child of another thread, between its fork and its exec: it has every descriptor of its parent.
    with path.open("ab") as writer:
        child = subprocess.Popen(["sh", "-c", "sleep 0.4; exec sleep 0.4 >&-"], stdout=writer)
    with pytest.raises(OSError, match="Text file busy"):
        subprocess.run([path], check=False)
    wait_for_writers(path)
    assert subprocess.run([path], check=False).returncode == 0
    child.wait()


def test_without_a_compiler_it_says_what_is_missing_and_what_works_instead(tmp_path: Path) -> None:
    done = without_compiler(tmp_path).run("install", "--native")
    assert done.returncode == 1
    assert "C compiler 'cc' is not on PATH" in done.stderr
    assert "gcc and libc6-dev" in done.stderr
    assert "Python scripts do the same" in done.stderr


@pytest.mark.parametrize("make", [without_compiler, with_broken_compiler])
def test_programs_that_were_asked_for_and_cannot_be_made_change_nothing(
    tmp_path: Path, make: Callable[[Path], ScratchNode]
) -> None:
    node = make(tmp_path)
    node.run("install")
    before = {path: path.read_bytes() for path in entrypoints(node)}
    assert node.run("install", "--native").returncode == 1
    assert before == {path: path.read_bytes() for path in entrypoints(node)}


def test_a_compiler_that_fails_is_quoted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake(tmp_path / "cc", "echo no rule for this >&2; exit 1")
    monkeypatch.setenv("CC", f"{tmp_path}/cc --some-option")
    with pytest.raises(PluginError, match=r"cannot compile .*: no rule for this"):
        compile_one(flex=False, socket="/s", spool="/p")


@pytest.mark.usefixtures("has_compiler")
def test_without_a_static_c_library_it_links_dynamically(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = shutil.which(compiler()[0])
    fake(tmp_path / "cc", f'for one in "$@"; do [ "$one" = -static ] && exit 1; done; exec {real} "$@"')
    monkeypatch.setenv("CC", str(tmp_path / "cc"))
    program = compile_one(flex=False, socket="/s", spool="/p")
    assert is_ours(program)
    assert b"ld-linux" in program or b"ld64" in program


ODD = ['/a "quoted" path', "/back\\slash\\1", "/gr\u00fc\u00dfe/1", "/new\nline", "/??/x"]


@pytest.mark.usefixtures("has_compiler")
@pytest.mark.parametrize("path", ["".join(ODD), *(pytest.param(one, marks=pytest.mark.whole) for one in ODD)])
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
