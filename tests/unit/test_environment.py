"""The environment is copied while other threads change it."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
        changed.setenv(NAME, "there")
        changed.setattr(type(os.environ), "__iter__", names)
        yield


def test_a_variable_that_goes_meanwhile_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    with deleted_between(monkeypatch):
        assert NAME not in copy_environment()


def test_all_variables_are_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NAME, "there")
    assert copy_environment() == dict(os.environ)
    assert copy_environment()[NAME] == "there"
