"""Volumes of loopfile that a pod gets as block devices."""

import os
from typing import Any

import pytest
from tests.node.volumes.images import DRIVER, MIB, Node

from nodeplug import InvalidRequest, VolumeExpand, VolumeId
from nodeplug_volumes import loopdev

pytestmark = [pytest.mark.node, pytest.mark.usefixtures("has_loop_devices")]


def test_a_block_volume_is_a_device_that_keeps_its_data(node: Node) -> None:
    node.create("raw", block=True)
    device = node.stage("raw", block=True)
    with device.open("r+b", buffering=0) as stream:
        stream.write(b"mine")
        os.fsync(stream.fileno())
    node.unstage("raw")
    with node.stage("raw", block=True).open("rb", buffering=0) as stream:
        assert stream.read(4) == b"mine"


def test_a_block_volume_leaves_no_loop_device(node: Node, loops: Any) -> None:
    node.create("raw", block=True)
    node.stage("raw", block=True)
    assert len(loops()) == 1
    node.unstage("raw")
    assert loops() == {}


def test_a_loop_device_that_a_kill_left_is_released_when_it_is_staged_again(node: Node, loops: Any) -> None:
    node.create("raw", block=True)
    loopdev.attach(node.directory / "raw.img")
    node.stage("raw", block=True)
    assert len(loops()) == 1


@pytest.mark.programs("mkfs.ext4")
def test_a_block_volume_is_never_formatted(node: Node) -> None:
    node.create("raw", block=True)
    with pytest.raises(InvalidRequest, match="volumeMode Block"):
        node.stage("raw")
    node.create("fs")
    with pytest.raises(InvalidRequest, match="volumeMode Filesystem"):
        node.stage("fs", block=True)


def test_a_block_volume_grows_in_use(node: Node) -> None:
    node.create("raw", block=True)
    device = node.stage("raw", block=True)
    request = VolumeExpand(driver=DRIVER, volume_id=VolumeId("raw"), new_size=32 * MIB, mount_path=str(device))
    assert node.plugin.volume_expand(request) == 32 * MIB
    with device.open("rb") as stream:
        assert stream.seek(0, os.SEEK_END) == 32 * MIB
