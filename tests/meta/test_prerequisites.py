"""What a machine lacks is said before anything is set up, all of it together."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OF_DEBIAN = ("sh", "ls", "make", "touch", "dirname")
Ask = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """All that is on PATH: an ordinary user's Python that can do everything, and an unshare that is allowed."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in OF_DEBIAN:
        (found,) = [Path(place) / name for place in ("/bin", "/usr/bin") if (Path(place) / name).exists()][:1]
        (folder / name).symlink_to(found)
    for name, text in {"id": "echo 1000", "python3": "exit 0", "unshare": "exit 0"}.items():
        put(folder / name, text)
    return folder


def put(program: Path, text: str) -> None:
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)


@pytest.fixture
def ask(programs: Path, tmp_path: Path) -> Ask:
    def run(*goal: str) -> "subprocess.CompletedProcess[str]":
        command = [str(ROOT / ".ci/prerequisites"), "python3", str(tmp_path / "venv"), *goal]
        return subprocess.run(command, env={"PATH": str(programs)}, capture_output=True, text=True, check=False)

    return run


def test_a_machine_with_everything_is_told_nothing(ask: Ask) -> None:
    done = ask("demo")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_missing_for_the_demo_is_told_together(ask: Ask, programs: Path) -> None:
    put(programs / "python3", 'case "$2" in "import ensurepip") exit 1;; *print*) echo python3.11-venv;; esac')
    put(programs / "unshare", "echo unshare: Operation not permitted >&2; exit 1")
    done = ask("demo")
    assert done.returncode == 1
    assert "install python3.11-venv" in done.stderr
    assert "namespaces for ordinary users" in done.stderr
    assert "unshare: Operation not permitted" in done.stderr


def test_set_up_alone_needs_no_namespaces(ask: Ask, programs: Path) -> None:
    put(programs / "unshare", "exit 1")
    assert ask().returncode == 0


def test_root_needs_no_user_namespaces_and_no_venv_package(ask: Ask, programs: Path) -> None:
    put(programs / "id", "echo 0")
    put(programs / "apt-get", "exit 0")
    put(programs / "unshare", "exit 1")
    put(programs / "python3", 'case "$2" in "import ensurepip") exit 1;; esac')
    assert ask("demo").returncode == 0


def test_an_old_python_and_none_at_all_are_named(ask: Ask, programs: Path) -> None:
    put(programs / "python3", 'case "$*" in *version_info*) exit 1;; --version) echo Python 3.9.2;; esac')
    assert "'python3' is Python 3.9.2" in ask().stderr
    (programs / "python3").unlink()
    assert "'python3' cannot be run" in ask().stderr


@pytest.mark.programs("make")
def test_make_demo_says_it_before_it_sets_anything_up(programs: Path, tmp_path: Path) -> None:
    (programs / "unshare").unlink()
    put(programs / "python3", f"echo ran >>{tmp_path}/ran; exit 0")
    command = ["make", "demo", f"VENV={tmp_path}/venv"]
    env = {"PATH": str(programs)}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "the tool unshare: install util-linux" in done.stderr
    assert "setting up" not in done.stdout
    assert not (tmp_path / "venv").exists()


def test_the_readme_names_them_on_its_first_screen() -> None:
    screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:24])
    for word in ("make", "Python 3.11", "python3-venv", "unshare", "namespaces"):
        assert word in screen
