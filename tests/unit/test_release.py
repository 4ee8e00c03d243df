"""The version that a process says of itself."""

from importlib import metadata

import pytest

from nodeplug.release import own_version


def test_the_version_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    own_version.cache_clear()
    assert own_version() == metadata.version("nodeplug")

    def fail(name: str) -> metadata.Distribution:
        raise AssertionError(name)

    monkeypatch.setattr(metadata.Distribution, "from_name", fail)
    assert own_version() != ""
