"""The environment is copied while other threads change it."""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from nodeplug.process.environment import copy_environment

NAME = "NODEPLUG_TEST_OF_THE_ENVIRONMENT"


@contextmanager
def deleted_between(change: pytest.MonkeyPatch) -> Iterator[None]:
    """Delete a variable whenever the names were read and before the values are."""
    read = type(os.environ).__iter__

    def names(environ: "os._Environ[str]") -> Iterator[str]:
        found = list(read(environ))
        os.environ.pop(NAME, None)
        return iter(found)

    with change.context() as changed:
        os.environ[NAME] = "there"
        changed.setattr(type(os.environ), "__iter__", names)
        yield


def test_a_variable_that_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with deleted_between(monkeypatch):
        assert NAME not in copy_environment()


def test_all_variables_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "there")
    assert copy_environment() == dict(os.environ)
    assert copy_environment()[NAME] == "there"


def test_nothing_copies_the_environment_in_another_way() -> None:
    root = Path(__file__).parents[2]
    other = re.compile(r"\*\*os\.environ|dict\(os\.environ|os\.environ(\.items|\.copy|\.values| \|)")
    sources = [*root.glob("supervisor/**/*.py"), *root.glob("plugins/**/*.py")]
    found = [str(path) for path in sources if other.search(path.read_text()) and path.name != "environment.py"]
    assert (found, len(sources) > 100) == ([], True)
