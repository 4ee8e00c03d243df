"""Which paths of the node a network of the cluster may name."""

import importlib
import json
import pkgutil
import re
from typing import Any

import pytest
from pydantic import BaseModel
from pydantic.alias_generators import to_camel

import nodeplug_net
from nodeplug.config.cluster_tables import NODE_PATHS
from nodeplug.networks.node_paths import KEYS, is_allowed, named, refusal, refusal_of_text

BRIDGE = {"type": "bridge", "ipam": {"type": "host-local"}}


@pytest.mark.parametrize(
    "config",
    [
        {"ipam": {"resolvConf": "/etc/shadow"}},
        {"ipam": {"dataDir": "/etc"}},
        {"type": "tuning", "dataDir": "/etc"},
        {"plugins": [BRIDGE, {"type": "tuning", "dataDir": "/etc"}]},
        {"plugins": [{"type": "bridge", "IPAM": {"RESOLVCONF": "/etc/shadow"}}]},
        {"Plugins": [{"type": "bridge", "ipam": {"re\u017folvConf": "/etc/shadow"}}]},
        {"ipam": {"resolvConf": "/var/lib/cni/../../../etc/shadow"}},
        {"ipam": {"resolvConf": "etc/shadow"}},
        {"ipam": {"dataDir": "/var/lib/cnisecret"}},
        {"ipam": {"dataDir": "/var/lib/cni/a", "datadir": "/etc"}},
        {"ipam": {"type": "nodeplug-networks"}, "delegates": [{"ipam": {"dataDir": "/etc"}}]},
        {"ipam": {"type": "nodeplug-networks"}, "clusterNetwork": "/etc/shadow"},
        {"ipam": {"type": "nodeplug-networks"}, "confDir": "/etc"},
        {"ipam": {"ipam": {"confdir": "/etc"}}},
        {"ipam": [{"dataDir": "/etc"}]},
    ],
)
def test_a_path_that_is_not_allowed_is_refused(config: Any) -> None:
    said = refusal(config, NODE_PATHS)
    assert (
        "networks of the cluster may name only what `paths` of [networks] allows on this node: /etc/resolv.conf" in said
    )
    assert refusal_of_text(json.dumps(config), NODE_PATHS) == said


@pytest.mark.parametrize(
    "config",
    [
        BRIDGE,
        {"ipam": {"resolvConf": "/etc/resolv.conf", "dataDir": "/var/lib/cni/networks"}},
        {"type": "tuning", "dataDir": "/run/cni/tuning"},
        {"ipam": {"resolvConf": ""}},
        {"ipam": {"resolvConf": 7}},
        {"ipam": "/etc"},
        {"clusterNetwork": "pods"},
        {"plugins": "x"},
        {"plugins": ["x", None]},
        ["x"],
        None,
    ],
)
def test_all_others_are_left_to_the_plugin(config: Any) -> None:
    assert refusal(config, NODE_PATHS) == ""


def test_what_is_nested_too_deeply_is_refused() -> None:
    assert refusal_of_text("[" * 100_000, ()) == "it is nested too deeply"


@pytest.mark.parametrize("text", ["", "{"])
def test_what_is_no_json_is_left_to_whoever_runs_it(text: str) -> None:
    assert refusal_of_text(text, ()) == ""


def test_a_folder_allows_what_is_below_it() -> None:
    assert is_allowed("/a/b", ["/a"])
    assert is_allowed("/a", ["/a"])
    assert not is_allowed("/", ["/a"])


def test_no_path_is_allowed_where_the_list_is_empty() -> None:
    assert "allows on this node: none" in refusal({"ipam": {"dataDir": "/var/lib/cni"}}, ())


def test_every_key_is_looked_for_at_every_place() -> None:
    keys = {key: f"/{key}" for key in sorted(KEYS)}
    config = {**keys, "ipam": keys, "delegates": [{"ipam": keys}]}
    assert [*named(config)] == [
        (f"{prefix}{key}", path) for prefix in ("", "ipam.", "delegates.ipam.") for key, path in keys.items()
    ]


OTHERS = {
    "kernelpath": "of host-device, which looks for it below /sys alone",
}
"""Keys for paths that are not looked for, and why."""


def test_no_bundled_plugin_has_another_key_for_a_path() -> None:
    found: set[str] = set()
    for module in pkgutil.walk_packages(nodeplug_net.__path__, "nodeplug_net."):
        for one in vars(importlib.import_module(module.name)).values():
            if isinstance(one, type) and issubclass(one, BaseModel) and one.__name__.endswith("Conf"):
                found |= {to_camel(name) for name in one.model_fields}
    paths = {name for name in found if re.search(r"(?i)(dir|path|conf|file|folder)$", name)} - {"runtimeConf"}
    assert {name.casefold() for name in paths - OTHERS.keys()} <= KEYS, paths
    assert {"dataDir", "resolvConf"} <= paths
