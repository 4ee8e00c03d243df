"""An API server with a class of all devices of one driver, and a scheduler."""

from collections.abc import Iterator

import pytest
from tests.node.dra.objects import DRIVER, NODE

from nodeplug.testing.dra import ResourceApi, Scheduler


@pytest.fixture
def api() -> Iterator[ResourceApi]:
    with ResourceApi(NODE) as server:
        yield server


@pytest.fixture
def scheduler(api: ResourceApi) -> Scheduler:
    made = Scheduler(api)
    made.add_class("acme", f'device.driver == "{DRIVER}"')
    return made
