"""The example of the page about stand-ins runs as it stands there."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.node.dra.acted_driver import ActedDriver, device
from tests.node.dra.objects import slice_of

import nodeplug.testing.dra
from nodeplug.pb import dra_v1_pb2 as pb
from nodeplug.testing.dra import ResourceApi

pytestmark = pytest.mark.unprivileged
PAGE = Path(__file__).parents[3] / "docs" / "runtime-stand-ins.md"


@contextmanager
def driver(registry: Path, api: ResourceApi) -> Iterator[None]:
    api.create("resourceslices", slice_of({"name": "one"}))
    with ActedDriver(registry) as made:
        made.answer = lambda claim: pb.NodePrepareResourceResponse(
            devices=[device(claim, "one", "acme.example.com/gpu=one")]
        )
        yield


def test_the_example_of_dynamic_resource_allocation_runs(short_path: Path, specs: Path) -> None:
    devices = '[{"name": "one", "containerEdits": {"env": ["CARD=one"]}}]'
    text = f'{{"cdiVersion": "0.5.0", "kind": "acme.example.com/gpu", "devices": {devices}}}'
    (specs / "one.json").write_text(text)
    (block,) = [one for one in re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL) if "Dra" in one]
    public = {name: getattr(nodeplug.testing.dra, name) for name in nodeplug.testing.dra.__all__}
    names: dict[str, Any] = {**public, "kubelet_root": short_path / "k", "cdi_folder": specs, "driver": driver}
    exec(block, names)
    assert names["edits"].env == {"CARD": "one"}
    assert names["kubelet"].pods == []
