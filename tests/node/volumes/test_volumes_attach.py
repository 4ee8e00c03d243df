"""The verbs of drivers with attach that mount nothing: each reaches its hook, and its answer reaches kubelet."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeplug import (
    Claim,
    VolumeAttach,
    VolumeAttached,
    VolumeClaim,
    VolumeExpand,
    VolumeIsAttached,
    VolumeStage,
    VolumeWaitAttached,
    hookimpl,
)

DRIVER = "acme/disk"
OPTIONS = json.dumps({"name": "one", "kubernetes.io/fsType": "ext4"})


class Disk:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def claims(self) -> Sequence[Claim]:
        return [VolumeClaim(DRIVER)]

    @hookimpl
    def volume_attach(self, request: VolumeAttach) -> VolumeAttached:
        return VolumeAttached(device=f"/dev/disk/{request.options['name']}")

    @hookimpl
    def volume_is_attached(self, request: VolumeIsAttached) -> bool:
        self.seen.append(request)
        return request.node == "node-1"

    @hookimpl
    def volume_wait_attached(self, request: VolumeWaitAttached) -> str:
        self.seen.append(request)
        return f"{request.device}-part1"

    @hookimpl
    def volume_stage(self, request: VolumeStage) -> None:
        raise AssertionError("nothing is mounted here")

    @hookimpl
    def volume_expand(self, request: VolumeExpand) -> int:
        self.seen.append(request)
        return request.new_size + 512


def test_is_attached_is_asked_for_the_node_that_kubelet_names(make_node: Any) -> None:
    node = make_node(disk=Disk())
    assert node.call(DRIVER, "isattached", OPTIONS, "node-1") == {"status": "Success", "attached": True}
    assert node.call(DRIVER, "isattached", OPTIONS, "node-2") == {"status": "Success", "attached": False}


def test_wait_for_attach_answers_the_path_of_the_hook(make_node: Any) -> None:
    answer = make_node(disk=Disk()).call(DRIVER, "waitforattach", "/dev/sdx", OPTIONS)
    assert answer == {"status": "Success", "device": "/dev/sdx-part1"}


def test_hooks_get_the_drivers_own_options_alone(make_node: Any) -> None:
    disk = Disk()
    make_node(disk=disk).call(DRIVER, "waitforattach", "/dev/sdx", OPTIONS)
    assert disk.seen[0].options == {"name": "one"}


def test_expand_volume_answers_the_size_of_the_hook(make_node: Any) -> None:
    disk = Disk()
    answer = make_node(disk=disk).call(DRIVER, "expandvolume", OPTIONS, "/dev/sdx", "2048", "1024")
    assert answer == {"status": "Success", "volumeNewSize": 2560}
    assert (disk.seen[0].new_size, disk.seen[0].mount_path) == (2048, "")


def test_an_answer_that_is_no_json_is_a_failure_that_is_told(make_node: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Disk):
        @hookimpl
        def volume_attach(self, request: VolumeAttach) -> VolumeAttached:
            return VolumeAttached(device=Path("/dev/sdb"))  # type: ignore[arg-type] # the mistake of an author

    answer = make_node(disk=Odd()).call(DRIVER, "attach", OPTIONS, "node-1")
    assert answer["status"] == "Failure"
    assert answer["message"].rpartition("(request ")[2].rstrip(")") in caplog.text
