"""A Python of its own for a plugin, which a test may spoil."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests import environments

if TYPE_CHECKING:
    from tests.other_user import OtherUser


@pytest.fixture(scope="session")
def ready(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an environment with the plugin, to be copied."""
    folder = tmp_path_factory.mktemp("acme")
    environments.pack_acme(folder, "1.0")
    environments.copy(folder / "env", folder.glob("*.whl"))
    return folder / "env"


def _link(source: str, target: str) -> None:
    """Make a hard link of what no test writes or changes the mode of: there are two thousand files."""
    if Path(source).name in {"__init__.py", "pyvenv.cfg"}:
        shutil.copy2(source, target)
    else:
        os.link(source, target)


@pytest.fixture
def env(ready: Path, short_path: Path) -> Path:
    """Return an environment with the plugin that the test may spoil, and that other users may read."""
    short_path.chmod(0o755)
    return Path(shutil.copytree(ready, short_path / "env", symlinks=True, copy_function=_link))


@pytest.fixture
def of_others(env: Path, other_user: "OtherUser", monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the environment have a Python that other users may execute."""
    monkeypatch.setattr(sys, "executable", other_user.python)
    ask = "import sys; print(sys._base_executable)"
    base = Path(
        subprocess.run([other_user.python, "-c", ask], capture_output=True, text=True, check=True).stdout.strip()
    )
    (env / "bin" / "python").unlink()
    (env / "bin" / "python").symlink_to(base.resolve())
    (env / "pyvenv.cfg").write_text(f"home = {base.resolve().parent}\ninclude-system-site-packages = false\n")


@pytest.fixture
def python(env: Path) -> str:
    return str(env / "bin" / "python")
