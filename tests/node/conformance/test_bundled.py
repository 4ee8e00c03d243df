"""Every bundled plugin, and every plugin of the documentation, keeps every rule that applies to it."""

from pathlib import Path
from typing import Any

import pytest

from nodeplug.testing import conformance

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"
NETWORK = {"type": "example-wire", "ipam": {"type": "nodeplug-host-local", "subnet": "10.9.0.0/24"}}
DOCUMENTED: dict[str, dict[str, Any]] = {
    "fuse:Fuse": {},
    "wire:Wire": {"cni": NETWORK, "beside": {"host-local": {"config": {"data_dir": "{scratch}/addresses"}}}},
    "scratch:Scratch": {"config": {"size": "4m"}, "volume_options": {"name": "shared"}},
    "audit:Audit": {},
}
SHARINGS: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "exclusive": ([{"sharing": "exclusive", "resource": "nvidia.com/gpu"}], {}),
    "replicas": ([{"sharing": "replicas", "resource": "nvidia.com/gpu.shared", "replicas": 4}], {}),
    "memory": ([{"sharing": "memory"}], {"memory": "3GiB"}),  # so few units that some sets fit on no card
    "mig": (
        [
            {
                "sharing": "mig",
                "strategy": "mixed",
                "resource": "nvidia.com/mig",
                "profiles": {"1g.10gb": "nvidia.com/mig-1g.10gb", "3g.40gb": "nvidia.com/mig-3g.40gb"},
            }
        ],
        {"memory": "80GiB", "mig": ["1g.10gb", "1g.10gb", "3g.40gb"]},
    ),
}


@pytest.mark.parametrize("plugin", ["bridge", "host-local", "loopback", "hostdev", "tmpfs", "loopfile", "hostdir"])
def test_a_bundled_plugin_keeps_every_rule(plugin: str) -> None:
    conformance(plugin).check()


@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_way_to_share_a_card_keeps_every_rule(sharing: str) -> None:
    resources, card = SHARINGS[sharing]
    config = {"driver": "simulated", "simulated": [{"count": 2, **card}], "resources": resources}
    conformance("gpu", config).check()


@pytest.mark.parametrize("plugin", DOCUMENTED)
def test_a_documented_plugin_keeps_every_rule(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    conformance(plugin, **DOCUMENTED[plugin]).check()
