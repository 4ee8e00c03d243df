"""Rules for every test: what may be skipped, and what a test must not leave behind."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parents[1] / ".ci" / "allowed-skips"


def _import_bench() -> None:
    """Let tests import the benchmark, which no installation has. A path to it would lead to the tests as well."""
    place = Path(__file__).parents[1] / "bench" / "__init__.py"
    spec = importlib.util.spec_from_file_location("bench", place, submodule_search_locations=[str(place.parent)])
    if spec is None or spec.loader is None:
        raise ImportError(place)
    sys.modules["bench"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["bench"])


_import_bench()


def allowed_skips() -> list[re.Pattern[str]]:
    lines = (line.strip() for line in ALLOWED.read_text().splitlines())
    return [re.compile(line) for line in lines if line and not line.startswith("#")]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if os.environ.get("NODEPLUG_CI") and report.skipped and not hasattr(report, "wasxfail"):
        reason = str(report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longrepr).removeprefix(
            "Skipped: "
        )
        if not any(pattern.fullmatch(reason) for pattern in allowed_skips()):
            report.outcome = "failed"
            report.longrepr = f"{item.nodeid} was skipped where everything is supposed to be there: {reason}"
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
    for item in items:
        if item.get_closest_marker("node") or {"node", "real"} & set(item.path.parts):
            item.add_marker(root)


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A folder with a short name: sockets below it have at most 107 bytes in their path."""
    path = Path(tempfile.mkdtemp(prefix="np-", dir="/tmp"))
    yield path
    shutil.rmtree(path)


@dataclass(frozen=True)
class OtherUser:
    """An ordinary user, and a Python with nodeplug that this user may run."""

    prefix: tuple[str, ...]
    python: str
    env: dict[str, str]


@pytest.fixture(scope="session")
def other_user() -> OtherUser:
    """The interpreter of the tests may lie in a folder of root's alone; then Debian's runs what is installed here."""
    prefix = ("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--")
    root = Path(__file__).parents[1]
    installed = [path for path in sys.path if path.endswith("site-packages")]
    search = os.pathsep.join([str(root / "supervisor"), str(root / "plugins"), *installed])
    probe = "import decimal, grpc, pydantic_core, nodeplug.cli"
    for python, more in ((sys.executable, {}), ("/usr/bin/python3", {"PYTHONPATH": search})):
        env = {"PATH": os.environ["PATH"], "HOME": "/tmp", "LANG": "C.UTF-8", **more}
        # Through a shell: the very first program still runs with what is left of root's capabilities.
        command = [*prefix, "/bin/sh", "-c", 'exec "$0" -c "$1"', python, probe]
        if subprocess.run(command, env=env, cwd="/", capture_output=True, check=False).returncode == 0:
            return OtherUser(prefix, python, env)
    pytest.skip("needs a checkout that other users may read")
