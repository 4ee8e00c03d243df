"""An ordinary user for tests that run as root."""

import os
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests import programs


@dataclass(frozen=True)
class OtherUser:
    """An ordinary user, and a Python with nodeplug that this user may run."""

    prefix: tuple[str, ...]
    python: str
    env: dict[str, str]


@pytest.fixture(scope="session")
def other_user() -> OtherUser:
    """The interpreter of the tests may lie in a folder of root's alone; then Debian's runs what is installed here.

    It skips where others may not read the checkout, or execute a Python of this version. Where they may, whatever keeps
    them from running nodeplug is a failure.
    """
    programs.need("setpriv")
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    root = Path(__file__).parents[1]
    installed = [path for path in sys.path if path.endswith("site-packages")]
    search = os.pathsep.join([str(root / "supervisor"), str(root / "plugins"), *installed])
    probe = "import decimal, grpc, pydantic_core, nodeplug.cli"
    for python, more in ((sys.executable, {}), ("/usr/bin/python3", {"PYTHONPATH": search})):
        env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8", **more}
        # Through a shell: the very first program still runs with what is left of root's capabilities.
        command = [*prefix, "/bin/sh", "-c", 'exec "$0" -c "$1"', python, probe]
        tried = subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, check=False)
        if tried.returncode == 0:
            return OtherUser(prefix, python, env)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    pythons = [Path(sys.executable).resolve(), Path("/usr/bin", version)]
    if not (_is_open(root) and any(map(_is_open, pythons))):
        pytest.skip("needs a checkout that other users may read")
    pytest.fail(f"user 65534 may execute {python} and read {root}, and cannot run nodeplug: {tried.stderr}")


def _is_open(path: Path) -> bool:
    """Tell whether everybody may reach a path."""
    return path.exists() and all(one.stat().st_mode & stat.S_IXOTH for one in (path, *path.parents))
