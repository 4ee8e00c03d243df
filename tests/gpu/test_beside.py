"""What containers get beside their cards: nodes of GDRCopy, GDS, InfiniBand, and IMEX channels."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from nodeplug import NotReady
from nodeplug_gpu.access import GpuDevice, NodePaths, grant
from nodeplug_gpu.beside import missing
from nodeplug_gpu.cards import Card, Uuid
from nodeplug_gpu.config import Access

CARD = Card(Uuid("GPU-1"), 0, 3, "X", 80 << 30)
EVERYTHING = {"beside": ("gdrcopy", "gds", "mofed"), "imex_channels": (0, 3)}


@pytest.fixture
def node(tmp_path: Path, paths: NodePaths) -> NodePaths:
    """A node with all of it: the driver's /dev, and InfiniBand in that of the host."""
    host = tmp_path / "host"
    for file in ("infiniband/uverbs10", "infiniband/uverbs2", "infiniband/rdma_cm", "infiniband/umad0", "gdrdrv"):
        (host / "dev" / file).parent.mkdir(parents=True, exist_ok=True)
        (host / "dev" / file).touch()
    for file in ("gdrdrv", "nvidia-fs0", "nvidia-fs1", *(f"nvidia-caps-imex-channels/channel{n}" for n in range(4))):
        (paths.dev / file).parent.mkdir(exist_ok=True)
        (paths.dev / file).touch()
    (host / "etc").mkdir()
    (host / "etc/cufile.json").write_text("{}")
    (host / "run/udev").mkdir(parents=True)
    return replace(paths, node=host, host_dev=host / "dev")


def given(paths: NodePaths, **access: Any) -> dict[str, str]:
    """Return which node of the host is which of the container."""
    nodes = grant(Access(**access), [GpuDevice(CARD)], paths).nodes
    assert all(one.permissions == "rw" for one in nodes)
    return {one.container_path: one.host_path for one in nodes}


def test_nothing_is_passed_unless_it_is_asked_for(node: NodePaths) -> None:
    assert given(node) == {}


def test_everything_that_is_asked_for_and_is_there_is_passed(node: NodePaths) -> None:
    assert given(node, **EVERYTHING) == {
        "/dev/gdrdrv": f"{node.dev}/gdrdrv",
        "/dev/nvidia-fs0": f"{node.dev}/nvidia-fs0",
        "/dev/nvidia-fs1": f"{node.dev}/nvidia-fs1",
        "/dev/infiniband/uverbs2": "/dev/infiniband/uverbs2",
        "/dev/infiniband/uverbs10": "/dev/infiniband/uverbs10",
        "/dev/infiniband/rdma_cm": "/dev/infiniband/rdma_cm",
        "/dev/nvidia-caps-imex-channels/channel0": f"{node.dev}/nvidia-caps-imex-channels/channel0",
        "/dev/nvidia-caps-imex-channels/channel3": f"{node.dev}/nvidia-caps-imex-channels/channel3",
    }


def test_each_is_asked_for_by_itself(node: NodePaths) -> None:
    assert [*given(node, beside=("gdrcopy",))] == ["/dev/gdrdrv"]
    assert [*given(node, imex_channels=(1,))] == ["/dev/nvidia-caps-imex-channels/channel1"]


def test_storage_brings_its_configuration_and_what_udev_knows(node: NodePaths) -> None:
    mounts = grant(Access(beside=("gds",)), [GpuDevice(CARD)], node).mounts
    assert [(one.host_path, one.container_path, one.read_only) for one in mounts] == [
        ("/etc/cufile.json", "/etc/cufile.json", True),
        ("/run/udev", "/run/udev", True),
    ]
    assert not grant(Access(beside=("gds",)), [GpuDevice(CARD)], replace(node, programs=False)).mounts
    for file in node.dev.glob("nvidia-fs*"):
        file.unlink()
    assert not grant(Access(beside=("gds",)), [GpuDevice(CARD)], node).mounts


def test_what_the_node_does_not_have_is_left_out_and_said(paths: NodePaths, tmp_path: Path) -> None:
    bare = replace(paths, host_dev=tmp_path)
    assert given(bare, **EVERYTHING) == {}
    assert missing(Access.model_validate(EVERYTHING), bare) == [
        "containers get no gdrcopy: the node has no /dev/gdrdrv",
        "containers get no gds: the node has no /dev/nvidia-fs*",
        "containers get no mofed: the node has no /dev/infiniband/uverbs*",
        *(
            f"containers get no IMEX channel {n}: the node has no /dev/nvidia-caps-imex-channels/channel{n}"
            for n in (0, 3)
        ),
    ]


def test_a_channel_that_is_required_and_missing_is_refused_by_name(node: NodePaths) -> None:
    (node.dev / "nvidia-caps-imex-channels/channel3").unlink()
    with pytest.raises(NotReady, match="/dev/nvidia-caps-imex-channels/channel3 does not exist, and imex_required"):
        given(node, imex_channels=(0, 3), imex_required=True)
