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


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_share_cards_keeps_every_rule(way: str) -> None:
    cards = [{"memory": "80Gi", "mig": ["1g.10gb", "1g.10gb"]}] if way == "mig" else CARDS
    conformance(Gpu, {"driver": "simulated", "simulated": cards, "resources": [WAYS[way]]}).check()
