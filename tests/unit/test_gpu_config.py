"""What an administrator may write about GPUs, and what each mistake is answered."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from nodeplug_gpu.config import Exclusive, GpuConfig, Memory, Mig, Replicas, resource_names

MEMORY: dict[str, Any] = {"sharing": "memory"}
EXCLUSIVE: dict[str, Any] = {"sharing": "exclusive", "resource": "nvidia.com/gpu"}
REPLICAS: dict[str, Any] = {"sharing": "replicas", "resource": "nvidia.com/gpu.shared", "replicas": 4}
SINGLE: dict[str, Any] = {"sharing": "mig", "resource": "nvidia.com/mig"}
MIXED: dict[str, Any] = {"sharing": "mig", "strategy": "mixed", "profiles": {"1g.10gb": "nvidia.com/mig-1g"}}
CONFIGS = Path(__file__).parents[2] / "configs"


def read(*resources: dict[str, Any], **more: Any) -> GpuConfig:
    return GpuConfig.model_validate({"resources": resources} | more)


def complaint(*resources: dict[str, Any], **more: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        read(*resources, **more)
    return str(caught.value)


def of(index: int, **more: Any) -> dict[str, Any]:
    return {"cards": {"index": [index]}, **more}


def test_the_documented_file_is_a_good_configuration() -> None:
    document = tomllib.loads((CONFIGS / "gpu.toml").read_text())
    assert {type(entry) for entry in GpuConfig.model_validate(document["plugins"]["gpu"]["config"]).resources} == {
        Memory,
        Exclusive,
        Replicas,
        Mig,
    }


def test_memory_needs_no_other_word() -> None:
    entry = read(MEMORY).resources[0]
    assert resource_names(entry) == ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")


@pytest.mark.parametrize(
    "entry",
    [
        MEMORY | {"unit": "512Mi"},
        MEMORY | {"unit": 1 << 20},
        MEMORY | {"reserve": "1Gi", "policy": "spread", "max_units_per_card": 1},
        MEMORY | {"count_resource": ""},
        MEMORY | {"overuse": {"grace": "5m", "tolerance": "0", "kill_after": "1h"}},
        MEMORY | {"mps": {}},
        MEMORY | {"mps": {"thread_percentage": False, "exclusive_process": False, "stop_after": "1s"}},
        MEMORY | {"access": {"visible_devices": "index", "device_nodes": True, "cdi": "annotation"}},
        MEMORY | {"cards": {"pci": ["3B:00.0", "00000000:3b:00.0", "0000:3b:00.1"]}},
        REPLICAS | {"replicas": 2, "refuse_more_than_one": False, "policy": "binpack"},
        SINGLE | {"strategy": "none"},
        MIXED,
        MIXED | {"resource": "nvidia.com/anything"},
        {"sharing": "mig"},
        {"sharing": "mig", "strategy": "mixed"},
        {"sharing": "mig", "strategy": "mixed", "replicas": {"1g.*": 2}},
    ],
)
def test_good_entries_are_taken(entry: dict[str, Any]) -> None:
    assert len(read(entry).resources) == 1


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({}, "sharing"),
        ({"sharing": "cards"}, "'exclusive', 'replicas', 'memory', 'mig'"),
        ({"sharing": "exclusive"}, "resource"),
        (EXCLUSIVE | {"unit": "1Gi"}, "unit"),
        (MEMORY | {"unit": "1000Ki"}, "1048576"),
        (MEMORY | {"unit": "a lot"}, "is not a size"),
        (MEMORY | {"unit": "0"}, "unit"),
        (MEMORY | {"unit": "-1Gi"}, "is not a size"),
        (MEMORY | {"reserve": -1}, "reserve"),
        (MEMORY | {"policy": "random"}, "'binpack' or 'spread'"),
        (MEMORY | {"max_units_per_card": 0}, "max_units_per_card"),
        (MEMORY | {"max_units_per_card": 16001}, "max_units_per_card"),
        (MEMORY | {"overuse": {"grace": "soon"}}, "is not a duration"),
        (MEMORY | {"overuse": {"kill_after": "0s"}}, "kill_after"),
        (MEMORY | {"mps": {"stop_after": "0s"}}, "stop_after"),
        (MEMORY | {"access": {"cdi": "yes"}}, "cdi"),
        (MEMORY | {"access": {"cdi_kind": "gpu"}}, "cdi_kind"),
        (MEMORY | {"access": {"visible_devices": "all"}}, "visible_devices"),
        (MEMORY | {"access": {"visible_devices": "none", "device_list": "volume-mounts"}}, "names none"),
        (MEMORY | {"cards": {"index": [-1]}}, "index"),
        (MEMORY | {"cards": {"pci": ["3b"]}}, "must be a PCI address such as 0000:3b:00.0"),
        (MEMORY | {"cards": {"pci": ["0000:xx:00.0"]}}, "must be a PCI address"),
        (MEMORY | {"cards": {"name": ["A10"]}}, "name"),
        (MEMORY | {"count_resource": "aliyun.com/gpu-mem"}, "advertised twice"),
        (REPLICAS | {"replicas": 1}, "replicas"),
        (REPLICAS | {"replicas": 1001}, "replicas"),
        (SINGLE | {"strategy": "all"}, "strategy"),
        (SINGLE | {"profiles": {"1g.10gb": "nvidia.com/x"}}, "refused elsewhere"),
        (SINGLE | {"strategy": "none", "replicas": 2}, "for those of whole cards use sharing = 'replicas'"),
        (SINGLE | {"replicas": 0}, "replicas"),
        (SINGLE | {"replicas": {"*": 1001}}, "replicas"),
        (MIXED | {"profiles": {"1g.10gb": 7}}, "profiles"),
    ],
)
def test_mistakes_in_an_entry_are_named(entry: dict[str, Any], words: str) -> None:
    assert words in complaint(entry)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"resources": []}, "resources"),
        ({"poll": "0s"}, "poll"),
        ({"cdi_hook": "nvidia-cdi-hook"}, "cdi_hook"),
        ({"node_root": "node"}, "node_root"),
        ({"dev_root": "node"}, "dev_root"),
        ({"hang_after": "25h"}, "hang_after"),
        ({"health": {"strikes": 0}}, "strikes"),
        ({"health": {"window": "0s"}}, "window"),
        ({"driver": "amd"}, "driver"),
        ({"driver": "simulated"}, "`simulated` describes the cards of driver = 'simulated'"),
        ({"simulated": [{"memory": "1Gi"}]}, "`simulated` describes the cards of driver = 'simulated'"),
        ({"driver": "simulated", "simulated": [{"memory": "much"}]}, "is not a size"),
        ({"driver": "simulated", "simulated": [{"mig": ["large"]}]}, "is not a MIG profile"),
        ({"driver": "simulated", "simulated": [{"uuid": "GPU-abcd", "count": 2}]}, "a uuid names one card"),
        ({"gpus": 8}, "gpus"),
    ],
)
def test_mistakes_beside_the_entries_are_named(more: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words.replace("(", ".")):
        GpuConfig.model_validate({"resources": [MEMORY]} | more)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MEMORY, EXCLUSIVE),
        (MEMORY | of(0), EXCLUSIVE),
        (MEMORY | of(0), EXCLUSIVE | of(0)),
        (MEMORY | {"cards": {"pci": ["3b:00.0"]}}, EXCLUSIVE | {"cards": {"pci": ["0000:3B:00.0"]}}),
        (SINGLE, MIXED),
    ],
    ids=["all and all", "one and all", "the same index", "the same address", "MIG twice"],
)
def test_a_card_that_two_entries_surely_advertise_is_refused_with_both(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    words = complaint(one, other)
    assert "would advertise the same card; give each its own `cards`" in words
    assert all(resource_names(entry)[0] in words for entry in (*read(one).resources, *read(other).resources))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (MEMORY | of(0), EXCLUSIVE | of(1)),
        (MEMORY | of(0), EXCLUSIVE | {"cards": {"model": ["*H100*"]}}),
        (EXCLUSIVE, SINGLE),
        (EXCLUSIVE, MIXED),
    ],
    ids=["other indexes", "other keys", "MIG beside whole cards", "mixed beside whole cards"],
)
def test_entries_that_may_have_cards_of_their_own_are_taken(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert len(read(one, other).resources) == 2


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (EXCLUSIVE | of(0), EXCLUSIVE | of(1)),
        (MEMORY | of(0), MEMORY | of(1) | {"resource": "example.com/mem"}),
        (EXCLUSIVE, MIXED | {"profiles": {"1g.10gb": "nvidia.com/gpu"}}),
        (EXCLUSIVE, MIXED | {"resource": "nvidia.com/gpu"}),
    ],
    ids=["a name", "the counting resource", "a profile's name", "the name of a mixed entry"],
)
def test_a_name_that_two_entries_advertise_is_refused(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert "advertised twice" in complaint(one, other)


def test_profiles_may_share_a_name() -> None:
    entry = MIXED | {"profiles": {"1g.10gb": "nvidia.com/mig", "1g.12gb": "nvidia.com/mig"}}
    assert resource_names(read(entry).resources[0]) == ("nvidia.com/mig",)


def test_a_mixed_entry_is_known_by_its_first_profile() -> None:
    assert read(MIXED).resources[0].resource == "nvidia.com/mig-1g"


@pytest.mark.parametrize("name", ["gpu", "", "nvidia.com/", "nvidia.com/g pu", "kubernetes.io/gpu", "a/b/c", "/gpu"])
def test_a_bad_name_is_refused(name: str) -> None:
    assert "resources.0.exclusive.resource" in complaint(EXCLUSIVE | {"resource": name})


def test_no_name_means_no_count_resource() -> None:
    assert resource_names(read(MEMORY | {"count_resource": ""}).resources[0]) == ("aliyun.com/gpu-mem",)


def test_more_replicas_than_mps_serves_are_refused() -> None:
    entry = {"sharing": "replicas", "resource": "nvidia.com/gpu", "replicas": 49}
    GpuConfig.model_validate({"resources": [entry]})
    with pytest.raises(ValidationError, match="49 replicas of a card with `mps`: it serves at most 48 processes"):
        GpuConfig.model_validate({"resources": [entry | {"mps": {}}]})


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"size": "96GiB"}, "give `model` or `uuid`, a pattern"),
        ({"model": "*GB10*"}, "size"),
        ({"model": "*GB10*", "size": "0"}, "size"),
        ({"model": "*GB10*", "size": "96GiB", "index": 0}, "index"),
    ],
)
def test_a_size_of_no_card_is_refused(entry: dict[str, Any], words: str) -> None:
    assert words in complaint(MEMORY, memory=[entry])


def test_instances_have_the_names_of_nvidias_plugin_by_default() -> None:
    (single,) = read({"sharing": "mig"}).resources
    assert resource_names(single) == ("nvidia.com/gpu",)
    (mixed,) = read({"sharing": "mig", "strategy": "mixed"}).resources
    assert {"nvidia.com/mig-1g.5gb", "nvidia.com/mig-1g.10gb.me", "nvidia.com/mig-7g.80gb"} <= {*resource_names(mixed)}


def test_replicas_of_instances_go_by_the_first_pattern_that_fits() -> None:
    (entry,) = read({"sharing": "mig", "strategy": "mixed", "replicas": {"1g.10gb+me": 2, "1g.*": 4}}).resources
    assert isinstance(entry, Mig)
    assert [entry.replicas_of(one) for one in ("1g.10gb+me", "1g.10gb", "3g.40gb")] == [2, 4, 1]


@pytest.mark.parametrize(
    ("entries", "limits"),
    [
        ([MEMORY], "auto"),
        ([MEMORY], "kernel"),
        ([REPLICAS], "kernel"),
        ([MEMORY | {"mps": {}}], "kernel"),
        ([MEMORY | {"mps": {}}], "mps"),
        ([MEMORY], "observe"),
        ([EXCLUSIVE], "observe"),
        ([EXCLUSIVE], "auto"),
        ([MEMORY | {"mps": {}}], None),
    ],
)
def test_limits_are_what_the_entries_can_have(entries: list[dict[str, Any]], limits: str | None) -> None:
    assert read(*entries, limits=limits).limits == limits


@pytest.mark.parametrize(
    ("entries", "limits", "named"),
    [
        ([MEMORY], "mps", "`limits` = 'mps' and `mps` contradict each other: aliyun.com/gpu-mem has no `mps` table"),
        ([MEMORY | {"mps": {}}], "observe", "`limits` = 'observe' and `mps` contradict each other"),
        ([EXCLUSIVE, SINGLE], "kernel", "`limits` = 'kernel' is about cards that containers share, and no entry"),
        ([MEMORY], "cgroup", "'auto', 'kernel', 'mps' or 'observe'"),
    ],
)
def test_limits_that_contradict_an_entry_are_refused_with_both_keys(
    entries: list[dict[str, Any]], limits: str, named: str
) -> None:
    assert named in complaint(*entries, limits=limits)
