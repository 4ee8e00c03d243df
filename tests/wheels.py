"""Wheels of nodeplug and of a plugin of somebody else."""

from pathlib import Path

import pytest
from tests import environments


@pytest.fixture(scope="session")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of wheels: nodeplug, and what it needs without extras."""
    folder = tmp_path_factory.mktemp("wheels")
    environments.pack(["nodeplug", *environments.of_plugins()], folder)
    return folder


@pytest.fixture(scope="session")
def acme_wheels(wheels: Path) -> Path:
    for version in ("1.0", "2.0"):
        environments.pack_acme(wheels, version)
    return wheels
