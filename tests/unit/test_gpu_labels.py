"""Labels about cards, as GPU Feature Discovery writes them (k8s-device-plugin v0.20, tests/expected-output*.txt)."""

from pathlib import Path
from typing import Any

import pytest

from nodeplug.cluster.names import fault_of_label
from nodeplug_gpu.cards import Card, MigInstance, Snapshot, Uuid
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.labels import family, labels, sanitised

MEMORY = GpuConfig.model_validate({"resources": [{"sharing": "memory"}]})


def card(number: int = 0, **more: Any) -> Card:
    given = {"model": "NVIDIA H100 80GB HBM3", "memory": 81559 << 20, "compute_capability": (9, 0), **more}
    return Card(Uuid(f"GPU-{number}"), number, number, pci=f"0000:0{number + 1}:00.0", **given)


def snapshot(*cards: Card, **more: Any) -> Snapshot:
    return Snapshot("running", driver_version="570.86.15", cuda_version=12080, cards=cards, **more)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    (tmp_path / "class/dmi/id").mkdir(parents=True)
    (tmp_path / "class/dmi/id/product_name").write_text("ThinkSystem SR675 V3\n")
    for number in (1, 2):
        (tmp_path / f"bus/pci/devices/0000:0{number}:00.0").mkdir(parents=True)
        (tmp_path / f"bus/pci/devices/0000:0{number}:00.0/class").write_text("0x030200\n")
    return tmp_path


def test_a_node_of_two_cards_has_the_labels_that_discovery_writes(sysfs: Path) -> None:
    made = labels(snapshot(card(0), card(1), mig_capable=True), MEMORY, sysfs)
    assert made == {
        "nvidia.com/cuda.driver.major": "570",
        "nvidia.com/cuda.driver.minor": "86",
        "nvidia.com/cuda.driver.rev": "15",
        "nvidia.com/cuda.driver-version.major": "570",
        "nvidia.com/cuda.driver-version.minor": "86",
        "nvidia.com/cuda.driver-version.revision": "15",
        "nvidia.com/cuda.driver-version.full": "570.86.15",
        "nvidia.com/cuda.runtime.major": "12",
        "nvidia.com/cuda.runtime.minor": "8",
        "nvidia.com/cuda.runtime-version.major": "12",
        "nvidia.com/cuda.runtime-version.minor": "8",
        "nvidia.com/cuda.runtime-version.full": "12.8",
        "nvidia.com/gpu.machine": "ThinkSystem-SR675-V3",
        "nvidia.com/gpu.mode": "compute",
        "nvidia.com/mig.capable": "true",
        "nvidia.com/mps.capable": "false",
        "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
        "nvidia.com/gpu.count": "2",
        "nvidia.com/gpu.replicas": "1",
        "nvidia.com/gpu.sharing-strategy": "none",
        "nvidia.com/gpu.memory": "81559",
        "nvidia.com/gpu.family": "hopper",
        "nvidia.com/gpu.compute.major": "9",
        "nvidia.com/gpu.compute.minor": "0",
    }
    assert [fault_of_label(key, value) for key, value in made.items() if fault_of_label(key, value)] == []


def test_without_cards_there_are_no_labels(sysfs: Path) -> None:
    assert labels(snapshot(), MEMORY, sysfs) == {}
    assert labels(Snapshot("absent"), MEMORY, sysfs) == {}


def test_replicas_under_the_cards_own_name_are_shown_as_shared(sysfs: Path) -> None:
    config = GpuConfig.model_validate(
        {"resources": [{"sharing": "replicas", "resource": "nvidia.com/gpu", "replicas": 4}]}
    )
    made = labels(snapshot(card()), config, sysfs)
    names = ("product", "replicas", "sharing-strategy")
    assert [made[f"nvidia.com/gpu.{name}"] for name in names] == ["NVIDIA-H100-80GB-HBM3-SHARED", "4", "time-slicing"]


def instances(profile: str, count: int) -> tuple[MigInstance, ...]:
    return tuple(MigInstance(Uuid(f"MIG-{n}"), profile, 10 << 30, n, 0) for n in range(count))


def test_instances_of_one_profile_take_the_place_of_the_card(sysfs: Path) -> None:
    config = GpuConfig.model_validate({"resources": [{"sharing": "mig", "resource": "nvidia.com/gpu"}]})
    made = labels(snapshot(card(mig=True, instances=instances("1g.10gb", 7))), config, sysfs)
    assert made["nvidia.com/mig.strategy"] == "single"
    names = ("product", "count", "memory", "slices.gi", "slices.ci")
    values = [made[f"nvidia.com/gpu.{name}"] for name in names]
    assert values == ["NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "7", "10240", "1", "1"]


def test_each_profile_of_the_mixed_strategy_has_labels_of_its_own(sysfs: Path) -> None:
    config = GpuConfig.model_validate(
        {"resources": [{"sharing": "mig", "strategy": "mixed", "profiles": {"1g.10gb": "nvidia.com/mig-1g.10gb"}}]}
    )
    made = labels(snapshot(card(mig=True, instances=instances("1g.10gb+me", 2))), config, sysfs)
    assert made["nvidia.com/mig-1g.10gb.me.count"] == "2"
    assert made["nvidia.com/gpu.replicas"] == "0"
    assert made["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3"


def test_instances_that_are_shared_say_so(sysfs: Path) -> None:
    config = GpuConfig.model_validate({"resources": [{"sharing": "mig", "replicas": 4}]})
    made = labels(snapshot(card(mig=True, instances=instances("1g.10gb", 7))), config, sysfs)
    values = [made[f"nvidia.com/gpu.{key}"] for key in ("product", "count", "replicas", "sharing-strategy")]
    assert values == ["NVIDIA-H100-80GB-HBM3-MIG-1g.10gb-SHARED", "7", "4", "time-slicing"]


def test_profiles_that_the_single_strategy_cannot_have_are_invalid(sysfs: Path) -> None:
    config = GpuConfig.model_validate({"resources": [{"sharing": "mig", "resource": "nvidia.com/gpu"}]})
    two = (*instances("1g.10gb", 1), *instances("2g.20gb", 1))
    made = labels(snapshot(card(mig=True, instances=two)), config, sysfs)
    assert made["nvidia.com/gpu.product"] == "NVIDIA-H100-80GB-HBM3-MIG-INVALID"
    assert made["nvidia.com/gpu.count"] == "0"


@pytest.mark.parametrize(
    ("capability", "name"),
    [((7, 0), "volta"), ((7, 5), "turing"), ((8, 6), "ampere"), ((8, 9), "ada-lovelace"), ((12, 0), "blackwell")],
)
def test_architectures_have_their_names(capability: tuple[int, int], name: str) -> None:
    assert family(capability) == name


def test_a_name_becomes_a_label_as_discovery_does_it() -> None:
    assert sanitised("Tesla V100-SXM2 (16GB)  rev@2") == "Tesla-V100-SXM2-16GB-rev2"
