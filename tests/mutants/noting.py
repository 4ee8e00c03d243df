"""A plugin of pytest that tells what runs: to the processes of a test which one it is, and to a file how each ended.

Copied as the module `nodeplug_noting` into the environment of a copy of the checkout.
"""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import nodeplug_seen  # type: ignore[import-not-found] # only where this is copied to
import pytest

_NOTES = os.environ["NODEPLUG_NOTES"]
_TESTS = Path(f"{nodeplug_seen.__file__}.tests")
_failed: set[str] = set()


def name_of(item: pytest.Item) -> str:
    """Return the id of a test without the group that pytest-xdist appends."""
    mark = item.get_closest_marker("xdist_group")
    return item.nodeid.removesuffix(f"@{mark.args[0]}") if mark is not None and mark.args else item.nodeid


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    name = name_of(item)
    file = name.partition("::")[0]
    suite = "quick" if item.get_closest_marker("quick") else "rest"
    os.environb[nodeplug_seen.VARIABLE] = f"{suite} {file}".encode()
    (_TESTS / str(os.getpid())).write_text(f"{suite} {file}", encoding="utf-8")
    _failed.clear()
    began = time.monotonic()
    result = yield
    note = {"suite": suite, "file": file, "test": name, "seconds": time.monotonic() - began, "failed": bool(_failed)}
    with Path(_NOTES).open("a", encoding="utf-8") as notes:
        notes.write(json.dumps(note) + "\n")
    return result


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _failed.add(report.nodeid)
