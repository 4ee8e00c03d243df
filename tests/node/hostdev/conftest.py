"""hostdev over real device nodes, made by mknod in a folder of the test."""

import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from nodeplug import Host, ResourceName, testing
from nodeplug_hostdev import HostDev

NAME = ResourceName("example.com/a")
NULL = (1, 3)


class Refreshed:
    """Remembers what was asked to be listed anew."""

    def __init__(self) -> None:
        self.resources: list[str] = []
        self._changed = threading.Condition()

    def __call__(self, resource: str) -> None:
        with self._changed:
            self.resources.append(resource)
            self._changed.notify_all()

    def wait_for(self, resource: str) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: resource in self.resources, 20)


@pytest.fixture
def refreshed() -> Refreshed:
    return Refreshed()


@pytest.fixture
def dev(tmp_path: Path) -> Path:
    (tmp_path / "dev").mkdir()
    return tmp_path / "dev"


def _mknod(path: Path, device: tuple[int, int] = NULL, kind: int = stat.S_IFCHR) -> None:
    os.mknod(path, kind | 0o600, os.makedev(*device))


@pytest.fixture
def mknod() -> Callable[..., None]:
    """Make a device node, a null device by default."""
    return _mknod


@pytest.fixture
def host(tmp_path: Path, refreshed: Refreshed) -> Host:
    return testing.host(tmp_path, plugin="hostdev", refresh=refreshed)


class Plugins:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.made: list[HostDev] = []

    def __call__(self, *groups: dict[str, Any], watch: bool = False, **resource: Any) -> HostDev:
        entry = {"resource": NAME, "groups": groups, **resource}
        config = HostDev.Config.model_validate({"resources": [entry], "watch": watch})
        plugin = HostDev(config, self.host)
        plugin.start()
        self.made.append(plugin)
        return plugin


@pytest.fixture
def plugins(host: Host) -> Iterator[Plugins]:
    made = Plugins(host)
    yield made
    for plugin in made.made:
        plugin.stop()


def _group(path: Path | str, *companions: dict[str, Any], **more: Any) -> dict[str, Any]:
    node = {key: more.pop(key) for key in ("permissions", "probe", "container_path") if key in more}
    return {"nodes": [{"path": str(path), **node}, *companions], **more}


@pytest.fixture
def group() -> Callable[..., dict[str, Any]]:
    """Write a group of the configuration: one path, its companions, and further keys."""
    return _group


def _health(devices: Any) -> dict[str, bool]:
    return {Path(device.grant.nodes[0].host_path).name: device.healthy for device in devices}


@pytest.fixture
def health() -> Callable[[Any], dict[str, bool]]:
    """Tell which listed devices are healthy, by the name of the node."""
    return _health
