"""The suites of tests, and which one each test belongs to.

A test is in the quick suite unless a mark or its folder says otherwise. `docs/contributing.md` has the table of
commands that run each suite.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from _pytest.mark.expression import Expression

SUITES: Mapping[str, str] = {
    "quick": "lint and types aside, what `make test` runs; every unmarked test",
    "whole": "what the quick suite leaves out for its cost: `make test-all`",
    "consumers": "needs a real consumer, built or Debian's: `make test-all`; every test in tests/real",
    "soak": "long lives, and other tests that cost most: `make soak`",
    "matrix": "needs another release of a consumer, of Python or of Debian: `make matrix`",
}
"""By mark, what the suite is."""
_CONSUMERS = Path(__file__).parent / "real"


def suite_of(item: pytest.Item) -> str:
    """Return the suite of a test: `matrix` or `soak` if any mark says so, else its nearest mark, else its folder's.

    Raises:
        pytest.UsageError: a test of tests/real is marked `quick`: no command would run it.
    """
    marks = [mark.name for mark in item.iter_markers() if mark.name in SUITES]
    if marks[:1] == ["quick"] and _CONSUMERS in item.path.parents:
        raise pytest.UsageError(f"{item.nodeid} cannot be in the quick suite, which has no test of tests/real")
    if marks:
        return next((suite for suite in ("matrix", "soak") if suite in marks), marks[0])
    return "consumers" if "real" in Path(item.path).parts else "quick"


def divided(
    values: Iterable[Any], unmarked: Collection[Any] = (), whole: Collection[Any] | None = None
) -> list[ParameterSet]:
    """Return the values of a parametrised test, of which some are in another suite than the test's file.

    Args:
        values: all of them.
        unmarked: those that stay in the suite of the file: `quick`, or `consumers` in tests/real.
        whole: those of the suite `whole`, and `soak` has all others; None for all others.
    """

    def marks(value: Any) -> tuple[pytest.MarkDecorator, ...]:
        if value in unmarked:
            return ()
        return (pytest.mark.whole if whole is None or value in whole else pytest.mark.soak,)

    return [pytest.param(value, marks=marks(value)) for value in values]


def pytest_configure(config: pytest.Config) -> None:
    for name, text in SUITES.items():
        config.addinivalue_line("markers", f"{name}: {text}")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no tests of consumers for the quick suite, which has none of them."""
    return True if config.option.markexpr == "quick" and collection_path == _CONSUMERS else None


def _added_later(item: pytest.Item) -> Collection[str]:
    """Return the mark of a property. Hypothesis adds it after the hook below has run."""
    return ("hypothesis",) if getattr(getattr(item, "obj", None), "is_hypothesis_test", False) else ()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add to each test the mark of its suite, and take it out of the suites that its other marks name."""
    chosen = Expression.compile(config.option.markexpr) if config.option.markexpr else None
    kept: list[pytest.Item] = []
    left: list[pytest.Item] = []
    for item in items:
        suite = suite_of(item)
        item.add_marker(suite)
        names = {mark.name for mark in item.iter_markers()} - SUITES.keys() | {suite, *_added_later(item)}
        wanted = chosen is None or chosen.evaluate(lambda name, /, names=names, **_: name in names)
        (kept if wanted else left).append(item)
    items[:] = kept
    config.hook.pytest_deselected(items=left)
