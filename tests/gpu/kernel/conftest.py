"""The node of these tests."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.gpu.kernel.limited_node import Node

from nodeplug_gpu import plugin as plugin_module


@pytest.fixture
def node(tmp_path: Path, nvml: Any, cgroups: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    nvml.state.version = b"615.71.09"
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    paths: Callable[..., Any] = plugin_module._paths
    monkeypatch.setattr(plugin_module, "_paths", lambda *of: replace(paths(*of), cgroups=cgroups.root))
    made = Node(tmp_path, nvml, cgroups)
    yield made
    for plugin in made.made:
        plugin.stop()
    for sleeper in made.sleepers:
        sleeper.kill()
        sleeper.wait()
