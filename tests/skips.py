"""Skips where everything is supposed to be there: only those that `.ci/allowed-skips` lists."""

import os
import re
from collections.abc import Generator
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
