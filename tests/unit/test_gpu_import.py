"""A configuration of NVIDIA's device plugin becomes one that does the same here, and says what it cannot say."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from nodeplug import InvalidRequest, NotFound
from nodeplug_gpu.command import app
from nodeplug_gpu.config import GpuConfig
from nodeplug_gpu.importing import imported
from nodeplug_gpu.nvidia_config import Translation, translate

V1 = {"version": "v1"}
GPU = {"sharing": "exclusive", "resource": "nvidia.com/gpu"}


def read(document: Mapping[str, Any], **environment: str) -> Translation:
    found = translate({**V1, **document}, environment)
    GpuConfig.model_validate(found.config)
    return found


def only(found: Translation) -> Mapping[str, Any]:
    (entry,) = found.config["resources"]
    return dict(entry)


def test_a_file_that_says_nothing_advertises_whole_cards() -> None:
    assert read({}).config == {"resources": [GPU]}


def test_time_slicing_makes_replicas_and_refuses_more_than_one_only_where_it_is_said() -> None:
    resources = [{"name": "nvidia.com/gpu", "replicas": 4}]
    found = only(read({"sharing": {"timeSlicing": {"resources": resources}}}))
    assert found == {
        "sharing": "replicas",
        "resource": "nvidia.com/gpu",
        "replicas": 4,
        "refuse_more_than_one": False,
        "policy": "spread",
    }
    said = {"renameByDefault": True, "failRequestsGreaterThanOne": True, "resources": [{"name": "gpu", "replicas": 2}]}
    found = only(read({"sharing": {"timeSlicing": said}}))
    assert (found["resource"], found["refuse_more_than_one"]) == ("nvidia.com/gpu.shared", True)


def test_mps_refuses_more_than_one_unless_it_is_said() -> None:
    resources = [{"name": "nvidia.com/gpu", "replicas": 10}]
    found = only(read({"sharing": {"mps": {"resources": resources}}}))
    assert (found["mps"], found["replicas"], found["refuse_more_than_one"]) == ({}, 10, True)


@pytest.mark.parametrize(
    ("flags", "access"),
    [
        ({"passDeviceSpecs": True}, {"device_nodes": True}),
        ({"deviceIDStrategy": "index"}, {"visible_devices": "index"}),
        ({"deviceListStrategy": "cdi-cri"}, {"visible_devices": "none", "cdi": "field"}),
        ({"deviceListStrategy": ["envvar", "cdi-annotations"]}, {"cdi": "annotation"}),
        ({"deviceListStrategy": "envvar,cdi-cri"}, {"cdi": "field"}),
        ({"deviceListStrategy": "volume-mounts"}, {"device_list": "volume-mounts"}),
        (
            {"deviceListStrategy": ["volume-mounts", "cdi-cri"], "deviceIDStrategy": "index"},
            {"visible_devices": "index", "device_list": "volume-mounts", "cdi": "field"},
        ),
    ],
)
def test_flags_of_the_plugin_say_how_containers_get_their_cards(flags: Any, access: Any) -> None:
    assert only(read({"flags": {"plugin": flags}}))["access"] == access


def test_what_containers_get_beside_cards() -> None:
    flags = {"gdrcopyEnabled": True, "mofedEnabled": True}
    imex = {"channelIDs": [0], "required": True}
    access = only(read({"flags": flags, "imex": imex}))["access"]
    assert access == {"beside": ["gdrcopy", "mofed"], "imex_channels": [0], "imex_required": True}
    assert only(read({"imex": {"channelIDs": [0]}}, GDS_ENABLED="true"))["access"] == {
        "beside": ["gds"],
        "imex_channels": [0],
    }


def test_strategies_of_mig() -> None:
    found = only(read({"flags": {"migStrategy": "single"}}))
    assert found == {"sharing": "mig", "strategy": "single", "resource": "nvidia.com/gpu"}
    whole, mixed = read({"flags": {"migStrategy": "mixed"}}).config["resources"]
    assert whole == GPU
    assert mixed == {"sharing": "mig", "strategy": "mixed"}


def test_time_slicing_of_mig_instances() -> None:
    resources = [{"name": "nvidia.com/mig-1g.10gb", "replicas": 3}, {"name": "gpu", "replicas": 2}]
    whole, mixed = read(
        {"flags": {"migStrategy": "mixed"}, "sharing": {"timeSlicing": {"resources": resources}}}
    ).config["resources"]
    assert whole["replicas"] == 2
    assert mixed == {
        "sharing": "mig",
        "strategy": "mixed",
        "replicas": {"1g.10gb": 3},
        "refuse_more_than_one": False,
    }
    said = {"renameByDefault": True, "resources": resources}
    found = read({"flags": {"migStrategy": "mixed"}, "sharing": {"timeSlicing": said}}).config["resources"][1]
    assert (found["profiles"]["1g.10gb"], found["profiles"]["3g.40gb"]) == (
        "nvidia.com/mig-1g.10gb.shared",
        "nvidia.com/mig-3g.40gb",
    )
    single = {"flags": {"migStrategy": "single"}, "sharing": {"timeSlicing": said}}
    assert only(read(single)) == {
        "sharing": "mig",
        "strategy": "single",
        "resource": "nvidia.com/gpu.shared",
        "replicas": 2,
        "refuse_more_than_one": False,
    }


def test_patterns_name_resources_by_model_and_by_profile() -> None:
    resources = {
        "gpus": [{"pattern": "*A10*", "name": "a10"}, {"pattern": "*T4*", "name": "nvidia.com/t4"}],
        "mig": [{"pattern": "1g.10gb", "name": "small"}],
    }
    found = read({"flags": {"migStrategy": "mixed"}, "resources": resources})
    first, second, mixed = found.config["resources"]
    assert first == {**GPU, "resource": "nvidia.com/a10", "cards": {"model": ["*A10*"]}}
    assert second["resource"] == "nvidia.com/t4"
    assert mixed["profiles"] == {"1g.10gb": "nvidia.com/small"}
    assert any(note.startswith("resources: NVIDIA's plugin passes it over") for note in found.notes)


def test_variables_come_before_the_file() -> None:
    flags = {"migStrategy": "none", "nvidiaDriverRoot": "/opt"}
    found = read(
        {"flags": flags}, MIG_STRATEGY="single", NVIDIA_DRIVER_ROOT="/run/nvidia/driver", PASS_DEVICE_SPECS="true"
    )
    assert found.config["driver_root"] == "/run/nvidia/driver"
    assert only(found)["strategy"] == "single"
    assert only(found)["access"] == {"device_nodes": True}


def test_where_things_are_on_the_node() -> None:
    flags = {"nvidiaDevRoot": "/run/nvidia/driver", "plugin": {"nvidiaCTKPath": "/usr/bin/nvidia-ctk"}}
    found = read({"flags": flags}).config
    assert (found["dev_root"], found["cdi_hook"]) == ("/run/nvidia/driver", "/usr/bin/nvidia-ctk")


@pytest.mark.parametrize(
    ("off", "on", "health"),
    [
        ("all", "", {"enabled": False}),
        ("xids", "", {"enabled": False}),
        ("79, 48", "", {"ignore_xids": [48, 79]}),
        ("79,48", "48,13", {"ignore_xids": [79], "fatal_xids": [13, 48]}),
        ("all", "all", None),
    ],
)
def test_health_checks_that_are_switched_off_and_on(off: str, on: str, health: Any) -> None:
    found = read({}, DP_DISABLE_HEALTHCHECKS=off, DP_ENABLE_HEALTHCHECKS=on)
    assert found.config.get("health") == health


@pytest.mark.parametrize(
    ("document", "note"),
    [
        ({"flags": {"failOnInitError": True}}, "flags.failOnInitError: the daemon goes on without a driver"),
        ({"flags": {"gfd": {"oneshot": False}}}, "flags.gfd: with a section"),
        (
            {"flags": {"plugin": {"deviceListStrategy": "envvar,volume-mounts"}}},
            "flags.plugin.deviceListStrategy: of `envvar` and `volume-mounts` the mounts",
        ),
        (
            {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2, "devices": [0]}]}}},
            "sharing.timeSlicing: `devices` of nvidia.com/gpu is passed over",
        ),
        (
            {"sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.5gb", "replicas": 2}]}}},
            "sharing.timeSlicing: nvidia.com/mig-1g.5gb is not shared",
        ),
    ],
)
def test_what_means_nothing_here_is_said(document: Any, note: str) -> None:
    assert any(one.startswith(note) for one in read(document).notes)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("version: v2", "version: Input should be 'v1'"),
        ("version: v1\nflags: {migStrategy: some}", "flags.migStrategy: Input should be"),
        ("version: v1\nflag: {}", "flag: Extra inputs are not permitted"),
        ("- 1", "is no configuration"),
        ("{", "is no YAML"),
    ],
)
def test_what_is_no_such_file_is_refused_with_the_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        imported(tmp_path / "config.yaml", "", [])


def test_a_variable_that_nobody_reads_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("version: v1")
    with pytest.raises(InvalidRequest, match="NODE_NAME: NVIDIA's device plugin reads no such variable; it reads MIG_"):
        imported(tmp_path / "config.yaml", "", ["NODE_NAME=a"])


def test_a_file_of_a_config_map_is_chosen_by_its_key(tmp_path: Path) -> None:
    (tmp_path / "map.yaml").write_text(
        "kind: ConfigMap\ndata:\n  a: |-\n    version: v1\n  b: |-\n    version: v1\n    flags: {migStrategy: single}\n"
    )
    assert only(imported(tmp_path / "map.yaml", "b", []))["sharing"] == "mig"
    with pytest.raises(InvalidRequest, match="choose one with --key: a, b"):
        imported(tmp_path / "map.yaml", "", [])
    with pytest.raises(NotFound, match="has no c; it has a, b"):
        imported(tmp_path / "map.yaml", "c", [])


def test_the_command_prints_a_table_that_can_be_used(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("version: v1\nflags: {failOnInitError: false}\n")
    found = CliRunner().invoke(app, ["import", str(tmp_path / "config.yaml")])
    assert found.exit_code == 0, found.output
    note, table = found.output.split("\n", 1)
    assert note == "# flags.failOnInitError: the daemon goes on without a driver, and advertises cards when it is there"
    assert tomllib.loads(table) == {"plugins": {"gpu": {"config": {"resources": [GPU]}}}}
