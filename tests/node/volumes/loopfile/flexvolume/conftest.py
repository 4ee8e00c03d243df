"""loopfile as a FlexVolume driver on a node."""

from pathlib import Path
from typing import Any

import pytest

from nodeplug_volumes.loopfile import LoopFile
from nodeplug_volumes.loopfile_config import LoopFileConfig


@pytest.fixture
def directory(area: Path) -> Path:
    return area / "images"


@pytest.fixture
def make_plugin(make_host: Any, directory: Path) -> Any:
    def make(**config: Any) -> LoopFile:
        plugin = LoopFile(LoopFileConfig(**({"directory": directory} | config)), make_host("loopfile"))
        plugin.start()
        return plugin

    return make


@pytest.fixture
def node(make_node: Any, make_plugin: Any) -> Any:
    return make_node(loopfile=make_plugin())


@pytest.fixture
def target(node: Any) -> Path:
    path: Path = node.target("a")
    return path
