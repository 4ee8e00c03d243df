"""The plugin keeps every rule that its callers rely on, with each way to share cards."""

from typing import Any

import pytest

from nodeplug.testing import conformance
from nodeplug_gpu.plugin import Gpu

CARDS = [{"memory": "8Gi", "count": 2}]
WAYS: dict[str, Any] = {
    "memory": {"sharing": "memory"},
    "exclusive": {"sharing": "exclusive", "resource": "nvidia.com/gpu"},
    "replicas": {"sharing": "replicas", "resource": "nvidia.com/gpu.shared", "replicas": 4},
    "mig": {"sharing": "mig", "resource": "nvidia.com/mig"},
}
ONE_LIFE = (
    "plugin-is-constructed",
    "unknown-keys-are-refused",
    "claims-are-valid",
    "inspection-is-json",
    "list-fits",
    "ids-are-unique",
    "lists-are-alike",
    "registers-with-kubelet",
    "one-device-is-granted",
    "several-devices-are-granted-or-refused",
    "grants-are-repeatable",
    "env-names-are-valid",
    "preferences-have-the-asked-size",
    "preferences-include-what-they-must",
    "preference-of-too-few-is-no-error",
)
"""The rules that one life of the plugin, in a thread of one daemon, is enough for."""


def config(way: str) -> dict[str, Any]:
    cards = [{"memory": "80Gi", "mig": ["1g.10gb", "1g.10gb"]}] if way == "mig" else CARDS
    return {"driver": "simulated", "simulated": cards, "resources": [WAYS[way]]}


@pytest.mark.parametrize("way", ["memory", "mig"])
def test_cards_that_are_shared_keep_the_rules_of_one_life(way: str) -> None:
    conformance(Gpu, config(way), isolation="thread", rules=ONE_LIFE).check()


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_share_cards_keeps_every_rule(way: str) -> None:
    conformance(Gpu, config(way)).check()
