"""The fuse example alone: constructed and asked by the test, without a daemon."""

from pathlib import Path

from fuse import Fuse

from nodeplug.testing import host


def test_sixteen_containers_can_have_the_device(tmp_path: Path) -> None:
    devices = Fuse({}, host(tmp_path)).device_list()
    assert len({device.id for device in devices}) == 16
    assert {node.host_path for device in devices for node in device.grant.nodes} == {"/dev/fuse"}
