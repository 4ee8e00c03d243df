"""An environment with nodeplug for plugins alone: it has not what the daemon needs, and says so."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests import environments

from nodeplug.__main__ import OF_THE_DAEMON

pytestmark = pytest.mark.unprivileged


@pytest.fixture(scope="module")
def python(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environments.make(tmp_path_factory.mktemp("plugins") / "env", wheels, "nodeplug")


def run(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, cwd="/")


@pytest.mark.whole
def test_it_has_what_a_plugin_needs_and_nothing_of_the_daemon(python: Path) -> None:
    (site,) = python.parents[1].glob("lib/python*/site-packages")
    found = {one.name for one in site.iterdir() if one.is_dir() and not one.name.endswith(".dist-info")}
    assert {"nodeplug", "pydantic", "pluggy"} <= found
    assert found.isdisjoint({"grpc", "google", "typer", "rich", "pyroute2", "prometheus_client", "tomli_w"})


@pytest.mark.whole
def test_what_a_plugin_and_its_process_import_is_there(python: Path) -> None:
    modules = "nodeplug, nodeplug.worker.inside, nodeplug.loading.discovery"
    done = run(python, "-c", f"import sys, {modules}; print({'asyncio'!r} in sys.modules)")
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


@pytest.mark.whole
@pytest.mark.parametrize("command", [["serve"], ["--help"], ["status"], ["version"]])
@pytest.mark.parametrize("start", [["nodeplug"], ["python", "-m", "nodeplug"]])
def test_the_command_says_in_a_sentence_what_to_install(start: list[str], command: list[str], python: Path) -> None:
    done = run(python.with_name(start[0]), *start[1:], *command)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: this Python has nodeplug for plugins alone (")
    assert line.endswith(f"{python} -m pip install 'nodeplug[daemon]'")


def test_what_is_missing_beyond_the_daemons_own_is_no_matter_of_installation(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import of_somebody_else\n", encoding="ascii")
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from nodeplug.__main__ import main; main()"
    assert "ModuleNotFoundError: No module named 'of_somebody_else'" in run(sys.executable, "-c", code).stderr


def test_without_a_distribution_of_the_daemon_the_command_says_what_to_install() -> None:
    absent = "import sys; sys.modules['typer'] = None; sys.argv = ['nodeplug', 'status']"
    done = run(sys.executable, "-c", f"{absent}; from nodeplug.__main__ import main; main()")
    assert done.returncode == 1
    assert done.stderr == (
        "error: this Python has nodeplug for plugins alone (typer is missing): "
        f"{sys.executable} -m pip install 'nodeplug[daemon]'\n"
    )


def test_a_plugin_and_its_process_import_nothing_of_the_daemon() -> None:
    code = "import nodeplug, nodeplug.worker.inside, nodeplug.loading.discovery; print(*sys.modules)"
    done = run(sys.executable, "-c", f"import sys; {code}")
    assert done.returncode == 0, done.stderr
    assert OF_THE_DAEMON.isdisjoint(name.partition(".")[0] for name in done.stdout.split())
    assert "asyncio" not in done.stdout.split()
