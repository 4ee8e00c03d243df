"""Runs of the rules, side by side: each one is a daemon and a few processes that mostly wait for each other."""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from nodeplug.testing import Report, conformance


@pytest.fixture(scope="module")
def _reports(request: pytest.FixtureRequest, _path: None) -> Iterator[Callable[[str], Report]]:
    """Start a run for each selected test of the module, and return the report for the name of one.

    The module's `asked(params)` says what the run for a test is asked for: the arguments of `conformance`. A run that
    executes programs begins with its test, since what is executed counts as the doing of the test that runs.
    """
    items: Any = request.session.items  # with parameters, which an item's type does not tell
    wanted: dict[str, dict[str, Any]] = {}
    runs = {}
    with ThreadPoolExecutor(os.cpu_count(), "conformance") as workers:
        for item in items:
            if item.path == request.path and "report" in item.fixturenames:
                wanted[item.name] = item.module.asked(item.callspec.params)
                if item.get_closest_marker("programs") is None:
                    runs[item.name] = workers.submit(conformance, **wanted[item.name])
        yield lambda name: runs[name].result() if name in runs else conformance(**wanted[name])
        workers.shutdown(cancel_futures=True)


@pytest.fixture
def report(request: pytest.FixtureRequest, _reports: Callable[[str], Report]) -> Report:
    """The report about the plugin of this test; those for the tests after it are made meanwhile."""
    return _reports(request.node.name)
