"""What hostdev accepts as configuration, and how it says no."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from nodeplug.loading.classes import PluginRefused, validate_config
from nodeplug.loading.discovery import find
from nodeplug_hostdev import HostDev

ROOT = Path(__file__).parents[2]


def check(*groups: dict[str, Any], **more: Any) -> None:
    resource = {"resource": "example.com/a", "groups": groups, **more}
    validate_config("hostdev", find("hostdev"), {"resources": [resource]})


def test_smallest_configuration_is_accepted() -> None:
    check({"nodes": [{"path": "/dev/fuse"}]})


def test_plugin_is_found_by_its_entry_point() -> None:
    assert find("hostdev").cls is HostDev


def test_shipped_example_is_valid() -> None:
    document = tomllib.loads((ROOT / "configs/plugins.d/hostdev.toml").read_text())
    HostDev.Config.model_validate(document["plugins"]["hostdev"]["config"])


def test_shipped_example_names_every_key() -> None:
    text = (ROOT / "configs/plugins.d/hostdev.toml").read_text()
    definitions = HostDev.Config.model_json_schema()
    keys = {key for model in [definitions, *definitions["$defs"].values()] for key in model["properties"]}
    assert {key for key in keys if f"{key} = " not in text and f".{key}]" not in text} == set()


@pytest.mark.parametrize(
    ("group", "problem"),
    [
        ({"nodes": []}, r"groups\[0\].nodes: .*at least 1"),
        ({"nodes": [{"path": "dev/fuse"}]}, "must be an absolute path"),
        ({"nodes": [{"path": "/dev/../etc"}]}, r"without '\.\.'"),
        ({"nodes": [{"path": "/dev/**/x"}]}, r"'\*\*' is not supported"),
        ({"nodes": [{"path": "/dev/a", "permissions": "rx"}]}, "'r' .read., 'w' .write. and 'm'"),
        ({"nodes": [{"path": "/dev/a", "permissions": ""}]}, "'r' .read., 'w' .write. and 'm'"),
        ({"nodes": [{"path": "/dev/a", "optional": True}]}, "cannot be optional"),
        ({"nodes": [{"path": "/dev/a"}], "count": 0}, r"groups\[0\].count: must be at least 1, not 0"),
        ({"nodes": [{"path": "/dev/a"}], "limit": 0}, r"groups\[0\].limit: must be at least 1, not 0"),
        ({"nodes": [{"path": "/dev/a", "probe": "stat"}]}, '"open" or "exists"'),
        (
            {"nodes": [{"path": "/dev/a"}], "shares": 2},
            r"groups\[0\].shares: unknown key; allowed: nodes, count, limit",
        ),
    ],
)
def test_wrong_group_is_refused_with_its_key(group: dict[str, Any], problem: str) -> None:
    with pytest.raises(PluginRefused, match=problem):
        check(group)


def test_no_resource_is_refused() -> None:
    with pytest.raises(PluginRefused, match=r"resources: .*at least 1"):
        validate_config("hostdev", find("hostdev"), {"resources": []})


def test_resource_without_a_group_is_refused() -> None:
    with pytest.raises(PluginRefused, match=r"groups: .*at least 1"):
        check()


def test_mount_with_a_relative_path_is_refused() -> None:
    with pytest.raises(PluginRefused, match=r"mounts\[0\]\.host_path: .*absolute"):
        check({"nodes": [{"path": "/dev/a"}]}, mounts=[{"host_path": "etc", "container_path": "/etc"}])


def test_resource_that_is_written_twice_is_refused_by_name() -> None:
    resource = {"resource": "example.com/a", "groups": [{"nodes": [{"path": "/dev/a"}]}]}
    with pytest.raises(PluginRefused, match=r"example\.com/a: more than one entry"):
        validate_config("hostdev", find("hostdev"), {"resources": [resource, resource]})
