"""expandfs names the volume that was mounted, although kubelet sends secrets with mount alone."""

import base64
import json
from typing import Any

import pytest

from nodeplug import VolumeExpand, VolumeId, hookimpl

pytestmark = pytest.mark.node
DRIVER = "acme/disk"
OPTIONS = {"name": "data"}
LOGIN = {"kubernetes.io/secret/password": base64.b64encode(b"correct-horse").decode()}
SIZES = ("2048", "1024")


@pytest.fixture
def growing(make_node: Any, stager: Any) -> Any:
    class Growing(type(stager)):  # type: ignore[misc]  # the stager's class is the conftest's
        def __init__(self) -> None:
            super().__init__()
            self.grown: list[VolumeId] = []
            self.staged: list[VolumeId] = []

        @hookimpl
        def volume_stage(self, request: Any) -> None:
            self.staged.append(request.volume_id)
            super().volume_stage(request)

        @hookimpl
        def volume_expand(self, request: VolumeExpand) -> int:
            self.grown.append(request.volume_id)
            return request.new_size

    plugin = Growing()
    return make_node(disk=plugin), plugin


def expand(node: Any, target: Any) -> Any:
    return node.call(DRIVER, "expandfs", json.dumps(OPTIONS), "", str(target), *SIZES)["status"]


def test_a_volume_with_secrets_keeps_its_name(growing: Any) -> None:
    node, plugin = growing
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS | LOGIN)
    assert expand(node, target) == "Success"
    assert plugin.grown == plugin.staged


def test_a_volume_without_secrets_keeps_its_name(growing: Any) -> None:
    node, plugin = growing
    target = node.target("a")
    node.mount(DRIVER, target, OPTIONS)
    assert expand(node, target) == "Success"
    assert plugin.grown == plugin.staged


def test_the_record_of_another_volume_is_not_believed(growing: Any) -> None:
    node, plugin = growing
    target = node.target("a")
    node.mount(DRIVER, target, {"name": "other"} | LOGIN)
    expand(node, target)
    assert plugin.grown[0] not in plugin.staged
    assert "+" not in plugin.grown[0]
