"""Rules for every test: what may be skipped, and what a test must not leave behind."""

import os
import re
import shutil
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

ALLOWED = Path(__file__).parents[1] / ".ci" / "allowed-skips"


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
