"""The options of a pod for loopfile."""

from pathlib import Path
from typing import Any

import pytest
from tests.node.volumes.images import DRIVER
from tests.node.volumes.loopfile.flexvolume.calls import OPTIONS

from nodeplug import (
    InvalidRequest,
    VolumeIdentify,
)

pytestmark = pytest.mark.node
needs_loop_devices = pytest.mark.usefixtures("has_loop_devices")


def test_a_filesystem_that_loopfile_does_not_make_is_refused(node: Any, target: Path) -> None:
    answer = node.mount(DRIVER, target, OPTIONS | {"kubernetes.io/fsType": "ntfs"})
    assert "loopfile makes ext4, xfs, btrfs" in answer["message"]


@pytest.mark.parametrize("name", ["", "..", "../etc", "a/b", ".hidden", "/etc/passwd", "a\nb", "-x", "x" * 129, "ä"])
def test_a_name_that_is_no_plain_name_is_refused(node: Any, target: Path, name: str, directory: Path) -> None:
    answer = node.mount(DRIVER, target, OPTIONS | {"name": name})
    assert answer["status"] == "Failure"
    assert "option name" in answer["message"]
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("size", ["64MB", "-1", "", "1", "9e18Ki", "99Ei"])
def test_a_size_that_is_no_size_is_refused(node: Any, target: Path, size: str, directory: Path) -> None:
    assert node.mount(DRIVER, target, OPTIONS | {"size": size})["status"] == "Failure"
    assert list(directory.iterdir()) == []


def test_an_unknown_option_is_refused_by_name(node: Any, target: Path) -> None:
    assert "no option 'capacity'" in node.mount(DRIVER, target, {"name": "data", "capacity": "1Gi"})["message"]


def test_a_size_over_the_nodes_limit_is_refused(make_node: Any, make_plugin: Any) -> None:
    node = make_node(loopfile=make_plugin(max_size="32Mi"))
    answer = node.mount(DRIVER, node.target("a"), OPTIONS | {"size": "33Mi"})
    assert "33Mi; this node allows at most 32Mi" in answer["message"]


def test_the_volume_id_does_not_depend_on_the_size(make_plugin: Any) -> None:
    plugin = make_plugin()
    small, large = (VolumeIdentify(driver=DRIVER, options={"name": "data", "size": size}) for size in ("1Gi", "2Gi"))
    assert plugin.volume_id(small) == plugin.volume_id(large)


def test_options_are_checked_before_anything_is_made(make_plugin: Any) -> None:
    with pytest.raises(InvalidRequest):
        make_plugin().volume_id(VolumeIdentify(driver=DRIVER, options={"name": "../x"}))
