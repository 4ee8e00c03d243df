"""How a container gets at its cards: variables, nodes, and CDI names."""

from typing import Literal

import pytest

from nodeplug import NotReady
from nodeplug_gpu.access import GpuDevice, NodePaths, grant
from nodeplug_gpu.cards import Card, MigInstance, Uuid
from nodeplug_gpu.config import Access

INSTANCE = MigInstance(Uuid("MIG-1"), "1g.10gb", 10 << 30, 7, 0)
CARD = Card(Uuid("GPU-1"), 0, 3, "X", 80 << 30)
SPLIT = Card(Uuid("GPU-2"), 1, 4, "X", 80 << 30, mig=True, instances=(INSTANCE,))


def names(paths: NodePaths, *gpus: GpuDevice) -> list[str]:
    return [node.container_path for node in grant(Access(device_nodes=True), gpus, paths).nodes]


def test_cards_are_named_by_uuid_by_default(paths: NodePaths) -> None:
    given = grant(Access(), [GpuDevice(CARD), GpuDevice(SPLIT)], paths)
    assert given.env == {"NVIDIA_VISIBLE_DEVICES": "GPU-1,GPU-2"}
    assert not given.nodes


def test_cards_are_named_by_index_for_gpushares_users(paths: NodePaths) -> None:
    gpus = [GpuDevice(CARD), GpuDevice(SPLIT, INSTANCE)]
    assert grant(Access(visible_devices="index"), gpus, paths).env == {"NVIDIA_VISIBLE_DEVICES": "0,1:0"}


def test_an_instance_is_named_by_its_own_uuid(paths: NodePaths) -> None:
    assert grant(Access(), [GpuDevice(SPLIT, INSTANCE)], paths).env == {"NVIDIA_VISIBLE_DEVICES": "MIG-1"}


def test_the_variable_can_be_left_out(paths: NodePaths) -> None:
    assert grant(Access(visible_devices="none"), [GpuDevice(CARD)], paths).env == {}


@pytest.mark.parametrize(("by", "names"), [("uuid", ["GPU-1", "MIG-1"]), ("index", ["0", "1:0"])])
def test_a_list_by_mounts_has_devnull_for_each_device_and_the_folder_in_the_variable(
    paths: NodePaths, by: Literal["uuid", "index"], names: list[str]
) -> None:
    access = Access(device_list="volume-mounts", visible_devices=by)
    given = grant(access, [GpuDevice(CARD), GpuDevice(SPLIT, INSTANCE)], paths)
    folder = "/var/run/nvidia-container-devices"
    assert given.env == {"NVIDIA_VISIBLE_DEVICES": folder}
    assert [(one.host_path, one.container_path) for one in given.mounts] == [
        ("/dev/null", f"{folder}/{name}") for name in names
    ]


def test_nodes_are_those_of_the_minor_and_the_control_nodes_that_exist(paths: NodePaths) -> None:
    assert names(paths, GpuDevice(CARD)) == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3"]


def test_an_instance_brings_its_capability_nodes(paths: NodePaths) -> None:
    assert names(paths, GpuDevice(SPLIT, INSTANCE))[-2:] == [
        "/dev/nvidia-caps/nvidia-cap30",
        "/dev/nvidia-caps/nvidia-cap31",
    ]


@pytest.mark.parametrize("missing", ["nvidiactl", "nvidia3"])
def test_a_node_that_is_missing_is_named(paths: NodePaths, missing: str) -> None:
    (paths.dev / missing).unlink()
    with pytest.raises(NotReady, match=f"/dev/{missing} does not exist"):
        names(paths, GpuDevice(CARD))


def test_an_instance_that_was_destroyed_is_told(paths: NodePaths) -> None:
    (paths.capabilities / "gpu4/mig/gi7/access").unlink()
    with pytest.raises(NotReady, match="was the MIG instance destroyed"):
        names(paths, GpuDevice(SPLIT, INSTANCE))


def test_cdi_names_go_into_kubelets_field(paths: NodePaths) -> None:
    given = grant(Access(cdi="field"), [GpuDevice(CARD)], paths)
    assert given.cdi == ("nodeplug.io/gpu=GPU-1",)
    assert not given.annotations


def test_cdi_names_go_into_the_annotation_for_older_kubelets(paths: NodePaths) -> None:
    given = grant(Access(cdi="annotation"), [GpuDevice(CARD), GpuDevice(SPLIT)], paths)
    assert given.annotations == {"cdi.k8s.io/nodeplug.io-gpu_GPU-1": "nodeplug.io/gpu=GPU-1,nodeplug.io/gpu=GPU-2"}
    assert not given.cdi
