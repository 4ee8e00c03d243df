"""An author who is not root."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Type = Callable[..., "subprocess.CompletedProcess[str]"]
pytestmark = pytest.mark.programs("unshare")
IN_NAMESPACES = ("unshare", "--map-root-user", "--net", "--mount", "--")


@pytest.fixture
def types(other_user: Any, short_path: Path) -> Type:
    """Run a module of Python as an ordinary user, in a folder of theirs."""
    short_path.chmod(0o777)

    def run(*command: str, cwd: str = ".", within: tuple[str, ...] = ()) -> "subprocess.CompletedProcess[str]":
        search = f"src:{other_user.env.get('PYTHONPATH', '')}"
        env = {**other_user.env, "PYTHONPATH": search, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120"}
        argv = [*other_user.prefix, *within, other_user.python, "-m", *command]
        return subprocess.run(argv, cwd=short_path / cwd, env=env, capture_output=True, text=True, check=False)

    probe = subprocess.run([*other_user.prefix, *IN_NAMESPACES, "true"], check=False, capture_output=True)
    if probe.returncode != 0:
        pytest.skip("needs user namespaces for ordinary users")
    return run


@pytest.mark.soak
def test_a_new_device_plugin_passes_all_its_tests_without_root(types: Type) -> None:
    types("nodeplug", "new", "device", "mine")
    done = types("pytest", "-q", "-p", "no:cacheprovider", cwd="nodeplug-mine")
    assert "8 passed" in done.stdout, done.stdout + done.stderr


@pytest.mark.soak
def test_tests_of_volumes_are_skipped_with_the_command_that_runs_them(types: Type) -> None:
    types("nodeplug", "new", "volume", "mine")
    alone = types("pytest", "-q", "-rs", "-p", "no:cacheprovider", "-k", "not rules", cwd="nodeplug-mine")
    assert "8 skipped" in alone.stdout, alone.stdout + alone.stderr
    assert " ".join(IN_NAMESPACES) + " pytest" in alone.stdout
    inside = types("pytest", "-q", "-p", "no:cacheprovider", cwd="nodeplug-mine", within=IN_NAMESPACES)
    assert "9 passed" in inside.stdout, inside.stdout + inside.stderr


@pytest.mark.whole
def test_a_network_is_tried_without_root(types: Type) -> None:
    types("nodeplug", "new", "cni", "mine")
    done = types("nodeplug", "try", "mine.toml", "--network", "mine.conflist", cwd="nodeplug-mine")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the container has eth0, lo" in done.stdout
