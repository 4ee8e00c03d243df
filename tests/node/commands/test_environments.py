"""`nodeplug plugins add` and `remove`: a plugin's own Python environment is there as a whole, or not at all."""

import json
import os
import signal
import stat
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from nodeplug.testing import ScratchNode
from nodeplug.testing.waiting import until

pytestmark = pytest.mark.unprivileged


@pytest.fixture
def node(short_path: Path) -> Iterator[ScratchNode]:
    one = ScratchNode(short_path, "")
    try:
        yield one
    finally:
        one.kill()


def run(node: ScratchNode, *words: str) -> "subprocess.CompletedProcess[str]":
    place = ["--config", str(node.config_path), "--root", str(node.root)]
    command = [sys.executable, "-m", "nodeplug", "plugins", *words, *place]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", umask=0o077)


def add(node: ScratchNode, wheels: Path, what: str, *words: str) -> "subprocess.CompletedProcess[str]":
    return run(node, "add", what, "--no-index", "--find-links", str(wheels), *words)


def folder(node: ScratchNode) -> Path:
    return node.root / "opt" / "nodeplug-plugins"


def environments_of(node: ScratchNode) -> list[Path]:
    return list(folder(node).glob(".env-*"))


def distribution(node: ScratchNode) -> str:
    (row,) = node.status()["plugins"]
    assert row["state"] == "running", row["reason"]
    return str(row["distribution"])


@pytest.mark.whole
def test_an_environment_is_made_used_exchanged_and_removed(node: ScratchNode, acme_wheels: Path) -> None:
    made = add(node, acme_wheels, "acme==1.0")
    assert made.returncode == 0, made.stderr
    assert "Successfully installed" in made.stderr
    assert "acme 1.0 is installed for Python 3." in made.stderr
    sections = tomllib.loads(made.stdout)["plugins"]
    assert set(sections) == {"acme", "guest", "lost", "broken"}
    python = folder(node) / "acme" / "bin" / "python"
    assert sections["acme"] == {"isolation": "process", "python": str(python)}
    assert not Path(python.parents[1] / "lib").stat().st_mode & 0o022
    assert all(one.stat().st_mode & stat.S_IROTH for one in python.parents[1].glob("lib/*/site-packages/acme*"))

    section = f'[plugins.acme]\nisolation = "process"\npython = "{python}"\n'
    node.configure(section)
    node.start()
    assert distribution(node) == "acme 1.0"
    again = add(node, acme_wheels, str(next(acme_wheels.glob("acme-2.0-*.whl"))), "--json")
    assert again.returncode == 0, again.stderr
    told = json.loads(again.stdout)
    assert (told["name"], told["distribution"], told["python"]) == ("acme", "acme 2.0", str(python))
    assert len(environments_of(node)) == 1
    assert node.run("reload", "acme").returncode == 0
    assert distribution(node) == "acme 2.0"

    refused = run(node, "remove", "acme")
    assert refused.returncode == 1
    assert f"{folder(node)}/acme is the Python of acme: disable or remove the section first" in refused.stderr
    node.configure(f"{section}enabled = false\n")
    removed = run(node, "remove", "acme")
    assert (removed.returncode, removed.stdout) == (0, f"removed {folder(node)}/acme\n"), removed.stderr
    assert [one.name for one in folder(node).iterdir()] == [".lock"]
    gone = run(node, "remove", "acme")
    assert gone.returncode == 1
    assert f"there is no environment 'acme' in {folder(node)}; there is: none" in gone.stderr


@pytest.mark.soak
def test_what_cannot_be_installed_leaves_the_environment_that_was_there(node: ScratchNode, acme_wheels: Path) -> None:
    assert add(node, acme_wheels, "acme==1.0").returncode == 0
    before = environments_of(node)
    for what, why in (
        ("acme==3.0", "error: cannot install acme==3.0, see above; nothing was changed"),
        ("acme_library==1.0", "has no plugin: no entry point in the group 'nodeplug.v1'; nothing was changed"),
    ):
        done = add(node, acme_wheels, what)
        assert done.returncode == 1
        assert why in done.stderr
        assert environments_of(node) == before
    assert (folder(node) / "acme").resolve() == before[0]


@pytest.mark.whole
def test_a_python_that_cannot_make_environments_is_told(node: ScratchNode, acme_wheels: Path) -> None:
    done = add(node, acme_wheels, "acme", "--python", "/nobody/has/python")
    assert done.returncode == 1
    assert "error: cannot make an environment: /nobody/has/python: No such file or directory" in done.stderr
    assert environments_of(node) == []


@pytest.mark.soak
def test_an_interrupted_add_leaves_nothing_that_counts(node: ScratchNode, acme_wheels: Path) -> None:
    slow = node.root / "slow"
    slow.write_text('#!/bin/sh\nmkdir "$3/bin"\nexec sleep 600\n')
    slow.chmod(0o755)
    command = [sys.executable, "-m", "nodeplug", "plugins", "add", "acme", "--python", str(slow), "--name", "acme"]
    place = ["--config", str(node.config_path), "--root", str(node.root)]
    adding = subprocess.Popen([*command, *place], start_new_session=True)
    until(lambda: list(folder(node).glob(".env-*/bin")))
    os.killpg(adding.pid, signal.SIGKILL)
    adding.wait()
    assert not (folder(node) / "acme").exists()
    assert "there is no environment 'acme'" in run(node, "remove", "acme").stderr
    (left,) = environments_of(node)
    assert add(node, acme_wheels, "acme==1.0").returncode == 0
    assert (folder(node) / "acme").is_dir()
    assert left not in environments_of(node)


@pytest.mark.soak
def test_what_nodeplug_has_not_made_is_left_alone(node: ScratchNode, acme_wheels: Path) -> None:
    (folder(node) / "acme").mkdir(parents=True)
    done = add(node, acme_wheels, "acme==1.0")
    assert done.returncode == 1
    assert f"{folder(node)}/acme is in the way, and nodeplug has not made it" in done.stderr
    assert environments_of(node) == []
    assert "there is no environment 'acme'" in run(node, "remove", "acme").stderr


@pytest.mark.whole
def test_a_name_that_leads_elsewhere_is_refused(node: ScratchNode, acme_wheels: Path) -> None:
    done = add(node, acme_wheels, "acme", "--name", "../acme")
    assert done.returncode == 1
    assert "'../acme' cannot be a name: take letters, digits and single hyphens" in done.stderr
    assert "there is no environment '..'" in run(node, "remove", "..").stderr


def test_options_before_the_command_are_not_lost_in_silence(node: ScratchNode) -> None:
    done = run(node, "--json", "remove", "acme")
    assert done.returncode == 2
    assert "write the options behind" in " ".join(done.stderr.split())
