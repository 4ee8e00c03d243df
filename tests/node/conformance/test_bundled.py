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


@pytest.mark.parametrize("plugin", ["bridge", "host-local", "loopback", "hostdev", "tmpfs", "loopfile", "hostdir"])
def test_a_bundled_plugin_keeps_every_rule(plugin: str) -> None:
    conformance(plugin).check()


@pytest.mark.parametrize("plugin", DOCUMENTED)
def test_a_documented_plugin_keeps_every_rule(plugin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    conformance(plugin, **DOCUMENTED[plugin]).check()
