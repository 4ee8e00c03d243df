"""CDI specs: what they say of the cards, and that no container gets a name that the runtime does not know."""

import errno
import json
from pathlib import Path

import pytest
from tests.gpu.cdi.specs import CARD, SPLIT, Specs

from nodeplug_gpu.access import NodePaths
from nodeplug_gpu.cdi.document import LIBRARIES
from nodeplug_gpu.cdi.specs import PENDING


def test_every_card_and_instance_that_is_advertised_is_a_device_of_the_spec(tmp_path: Path, paths: NodePaths) -> None:
    document = Specs(tmp_path, paths).reconcile(CARD, SPLIT)
    assert document is not None
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "nodeplug.io/gpu")
    assert [device["name"] for device in document["devices"]] == ["GPU-1", "GPU-2", "MIG-1", "all"]
    assert {"path": "/dev/nvidia3", "hostPath": str(paths.dev / "nvidia3"), "permissions": "rw"} in document["devices"][
        0
    ]["containerEdits"]["deviceNodes"]


def test_the_drivers_libraries_are_mounted_by_their_sonames(tmp_path: Path, paths: NodePaths) -> None:
    folder = tmp_path / "driver/usr/lib/x86_64-linux-gnu"
    folder.mkdir(parents=True)
    for name in ("libcuda.so.1", "libcuda.so.535.1", "libcudart.so.12", "libnvidia-ml.so.1"):
        (folder / name).touch()
    document = Specs(tmp_path, paths).reconcile(CARD)
    assert document is not None
    places = [mount["containerPath"] for mount in document["containerEdits"]["mounts"]]
    assert places == [f"{LIBRARIES}/libcuda.so.1", f"{LIBRARIES}/libnvidia-ml.so.1"]


def test_all_devices_of_a_spec_are_one_device_too(tmp_path: Path, paths: NodePaths) -> None:
    document = Specs(tmp_path, paths).reconcile(CARD, SPLIT)
    assert document is not None
    nodes = [node["path"] for node in document["devices"][-1]["containerEdits"]["deviceNodes"]]
    caps = ["/dev/nvidia-caps/nvidia-cap30", "/dev/nvidia-caps/nvidia-cap31"]
    assert nodes == ["/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia3", "/dev/nvidia4", *caps]


def test_the_spec_follows_a_card_that_comes(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    document = specs.reconcile(CARD, SPLIT)
    assert document is not None
    assert len(document["devices"]) == 4


def test_a_spec_that_a_section_of_another_name_left_goes_for_it_describes_the_same_card(
    tmp_path: Path, paths: NodePaths
) -> None:
    Specs(tmp_path, paths, "former").reconcile(CARD)
    other_kind = Specs(tmp_path, paths, "former", cdi_kind="example.com/gpu")
    other_kind.reconcile(CARD)
    specs = Specs(tmp_path, paths)
    (specs.folder / "nodeplug-broken.json").write_text("{")
    specs.reconcile(CARD)
    left = {path.name for path in specs.folder.iterdir()}
    assert left == {
        "nodeplug-gpu-nodeplug.io-gpu.json",
        "nodeplug-former-example.com-gpu.json",
        "nodeplug-broken.json",
    }


def test_a_spec_of_other_cards_stays_for_containers_that_start_again(tmp_path: Path, paths: NodePaths) -> None:
    Specs(tmp_path, paths, "former").reconcile(SPLIT)
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    devices = [json.loads(path.read_text())["devices"] for path in sorted(specs.folder.iterdir())]
    assert [[one["name"] for one in some] for some in devices] == [["GPU-2", "MIG-1"], ["GPU-1", "all"]]


def test_a_spec_that_somebody_removed_is_written_again(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    next(specs.folder.iterdir()).unlink()
    assert specs.reconcile(CARD) is not None


def test_an_equal_spec_is_not_written_again(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    before = next(specs.folder.iterdir()).stat().st_ino
    specs.reconcile(CARD)
    assert next(specs.folder.iterdir()).stat().st_ino == before


def test_the_spec_stays_while_the_driver_is_away(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    before = specs.reconcile(CARD)
    assert specs.reconcile(state="failed") == before


def test_no_spec_is_written_where_another_writes_it(tmp_path: Path, paths: NodePaths) -> None:
    assert Specs(tmp_path, paths, cdi_write=False).reconcile(CARD) is None


def test_a_card_whose_node_is_missing_is_left_out_and_not_allocatable(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    (paths.dev / "nvidia4").unlink()
    document = specs.reconcile(CARD, SPLIT)
    assert document is not None
    assert [device["name"] for device in document["devices"]] == ["GPU-1", "all"]
    assert specs.why(CARD) == ""
    assert f"{paths.dev}/nvidia4 does not exist" in specs.why(SPLIT)
    assert "MIG-1" in specs.specs.fault


def test_no_card_is_allocatable_before_its_spec_is_written(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    assert specs.why(CARD) == PENDING
    specs.reconcile(CARD)
    assert specs.why(CARD) == ""
    assert specs.why(SPLIT) == PENDING


def test_a_card_whose_spec_cannot_be_written_is_not_allocatable_with_the_reason(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs = Specs(tmp_path, paths)
    specs.folder.parent.mkdir(parents=True, exist_ok=True)
    specs.folder.touch()
    specs.specs.reconcile(specs.inventory(CARD))
    assert f"the CDI spec of nodeplug.io/gpu cannot be written: {specs.folder}" in specs.why(CARD)
    assert specs.why(CARD) in specs.specs.fault
    specs.folder.unlink()
    specs.reconcile(CARD)
    assert (specs.why(CARD), specs.specs.fault) == ("", "")


def test_a_card_that_the_spec_on_disk_describes_stays_allocatable_though_a_new_one_cannot_be_written(
    tmp_path: Path, paths: NodePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    monkeypatch.setattr(Path, "write_bytes", full)
    specs.reconcile(CARD, SPLIT)
    assert specs.why(CARD) == ""
    assert "No space left on device" in specs.why(SPLIT)


BY_TOOLKIT = """---
cdiVersion: 0.5.0
containerEdits: {}
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia3
  name: "0"
- name: %s
kind: nvidia.com/gpu
"""


def test_a_card_that_another_spec_describes_is_allocatable_and_one_that_none_does_is_not(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs = Specs(tmp_path, paths, cdi_write=False, cdi_kind="nvidia.com/gpu")
    assert specs.why(CARD) == PENDING
    specs.reconcile(CARD)
    assert "no CDI spec in " in specs.why(CARD)
    assert "describes nvidia.com/gpu=GPU-1; run `nvidia-ctk cdi generate`" in specs.why(CARD)
    assert specs.why(CARD) in specs.specs.fault
    paths.cdi[0].mkdir(parents=True)
    for name, why in (("GPU-2", "describes nvidia.com/gpu=GPU-1, only 0, GPU-2;"), ("GPU-1", "")):
        (paths.cdi[0] / "nvidia.yaml").write_text(BY_TOOLKIT % name)
        specs.reconcile(CARD)
        assert why in specs.why(CARD)
    assert (specs.why(CARD), specs.refusal(CARD)) == ("", "")


@pytest.mark.parametrize("text", ["{", "[]", "kind: x\ndevices: [1]", "{}", "kind: nvidia.com/gpu\ndevices: 5"])
def test_a_file_that_is_no_spec_describes_nothing(tmp_path: Path, paths: NodePaths, text: str) -> None:
    specs = Specs(tmp_path, paths, cdi_write=False, cdi_kind="nvidia.com/gpu")
    paths.cdi[0].mkdir(parents=True)
    (paths.cdi[0] / "nvidia.yaml").write_text(text)
    (paths.cdi[0] / "away.json").symlink_to("nowhere")
    specs.reconcile(CARD)
    assert "no CDI spec in " in specs.why(CARD)


def test_a_name_that_two_specs_of_a_folder_describe_is_not_allocatable_since_the_runtime_takes_neither(
    tmp_path: Path, paths: NodePaths
) -> None:
    specs = Specs(tmp_path, paths, cdi_kind="nvidia.com/gpu", cdi_folder=str(paths.cdi[1]))
    for folder in paths.cdi:
        folder.mkdir(parents=True)
    (paths.cdi[0] / "nvidia.yaml").write_text(BY_TOOLKIT % "GPU-1")
    specs.reconcile(CARD)
    assert specs.why(CARD) == ""  # in another folder it is overridden by ours, or overrides it
    (paths.cdi[1] / "nvidia.yaml").write_text(BY_TOOLKIT % "GPU-1")
    specs.reconcile(CARD)
    assert f"{paths.cdi[1]}/nvidia.yaml both describe nvidia.com/gpu=GPU-1" in specs.why(CARD)
    assert "remove one of them" in specs.refusal(CARD)


@pytest.mark.parametrize("way", ["field", "annotation"])
def test_a_name_whose_spec_has_gone_is_refused_until_it_is_written_again(
    tmp_path: Path, paths: NodePaths, way: str
) -> None:
    specs = Specs(tmp_path, paths, cdi=way)
    specs.reconcile(CARD)
    assert specs.refusal(CARD) == ""
    next(specs.folder.iterdir()).unlink()
    assert specs.refusal(CARD) == (
        f"example.com/gpu cannot be given to a container by its CDI name: no CDI spec in {paths.cdi[0]} or "
        f"{paths.cdi[1]} or {specs.folder} describes nodeplug.io/gpu=GPU-1; nodeplug writes it again within seconds"
    )
    assert specs.told == ["changed", "changed"]  # the second time for the refusal: the next look comes at once
    specs.reconcile(CARD)
    assert (specs.refusal(CARD), specs.why(CARD)) == ("", "")


def test_a_spec_without_devices_goes_for_it_is_invalid(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    specs.reconcile(CARD)
    assert specs.reconcile() is None


def test_whoever_waits_is_told_when_a_spec_was_written(tmp_path: Path, paths: NodePaths) -> None:
    specs = Specs(tmp_path, paths)
    for _ in range(2):
        specs.reconcile(CARD)
    assert specs.told == ["changed"]
