"""An API server with a class of all devices of one driver, and a scheduler."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.node.dra.objects import DRIVER, NODE

from nodeplug.testing.dra import DraKubelet, DraTimeouts, ResourceApi, Scheduler


@pytest.fixture
def api() -> Iterator[ResourceApi]:
    with ResourceApi(NODE) as server:
        yield server


@pytest.fixture
def scheduler(api: ResourceApi) -> Scheduler:
    made = Scheduler(api)
    made.add_class("acme", f'device.driver == "{DRIVER}"')
    return made


@pytest.fixture
def specs(tmp_path: Path) -> Path:
    """The folder of CDI specs that the runtime reads."""
    (tmp_path / "cdi").mkdir()
    return tmp_path / "cdi"


@pytest.fixture
def kubelet(short_path: Path, api: ResourceApi, specs: Path) -> Iterator[DraKubelet]:
    """A kubelet that tries every tenth of a second what kubelet tries every second."""
    timeouts = DraTimeouts(retry=0.1, poll=0.02, wipe=0.3, health=0.1, call=10)
    with DraKubelet(short_path / "kubelet", api, [specs], timeouts=timeouts) as made:
        yield made
