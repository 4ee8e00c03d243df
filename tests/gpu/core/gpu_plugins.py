"""Instances of the plugin with their threads, over one folder and the simulated driver."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.gpu.core.gpu_node import MEM

from nodeplug import (
    Device,
    DeviceList,
    Holding,
    NotFound,
    NotReady,
    ResourceName,
)
from nodeplug.testing import host
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.plugin import FAULTS_FILE, Gpu

WHOLE = ResourceName("nvidia.com/gpu")
ONE_CARD = [{"memory": "4Gi", "uuid": "GPU-0000"}]
MEMORY: dict[str, Any] = {"sharing": "memory"}


class GpuPlugins:
    """Makes plugins over one folder, and keeps what they asked of the daemon."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.refreshed: list[str] = []
        self.held: Sequence[Holding] | None = ()
        self.made: list[Gpu] = []

    def make(self, resources: Sequence[Mapping[str, Any]] = (MEMORY,), **more: Any) -> Gpu:
        config = {"driver": "simulated", "simulated": ONE_CARD, "poll": "20ms", "resources": resources} | more
        given = host(self.folder, plugin="gpu", refresh=self.refreshed.append, holders=self._holders)
        self.made.append(Gpu(GpuConfig.model_validate(config), given))
        return self.made[-1]

    def _holders(self, resource: ResourceName) -> Sequence[Holding]:
        if self.held is None:
            raise NotReady("kubelet does not tell")
        return [one for one in self.held if one.resource == resource]

    def fail(self, **faults: Any) -> None:
        file = self.folder / "run" / FAULTS_FILE
        file.parent.mkdir(exist_ok=True)
        file.with_suffix(".new").write_text(json.dumps(faults))
        file.with_suffix(".new").rename(file)


def devices(plugin: Gpu, resource: ResourceName = MEM) -> Sequence[Device]:
    try:
        return plugin.device_list(DeviceList(resource=resource))
    except NotFound:
        return ()
