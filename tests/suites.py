"""The suites of tests, and which one each test belongs to.

A test is in the quick suite unless a mark or its folder says otherwise. `docs/contributing.md` has the table of
commands that run each suite.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

SUITES: Mapping[str, str] = {
    "quick": "lint and types aside, what `make test` runs; every unmarked test",
    "whole": "what the quick suite leaves out for its cost: `make test-all`",
    "consumers": "needs a real consumer, built or Debian's: `make test-all`; every test in tests/real",
    "soak": "takes minutes to hours: `make soak`",
    "matrix": "needs another release of a consumer, of Python or of Debian: `make matrix`",
}
"""By mark, what the suite is."""
_CONSUMERS = Path(__file__).parent / "real"


def suite_of(item: pytest.Item) -> str:
    """Return the suite of a test: its nearest mark, else what its folder says."""
    for mark in item.iter_markers():
        if mark.name in SUITES:
            return mark.name
    return "consumers" if "real" in Path(item.path).parts else "quick"


def pytest_configure(config: pytest.Config) -> None:
    for name, text in SUITES.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests of consumers for the quick suite, which has none of them."""
    return True if config.option.markexpr == "quick" and collection_path == _CONSUMERS else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(suite_of(item))
