"""Which containers use a claim, asked of a kubelet that lists them, on a node that serves claims alone."""

from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from nodeplug.config import PluginSection
from nodeplug.device.podresources import PodResources
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.testing.dra import podresources
from nodeplug.testing.dra.prepared import ClaimInfo

if TYPE_CHECKING:
    from tests.node.device.conftest import Minimal

pytestmark = pytest.mark.unprivileged

Run = Callable[[Coroutine[Any, Any, None]], None]
FIVE = ClaimInfo("shop", "five", "uid-five", [], {})


def test_who_uses_a_claim_stays_known_while_kubelet_does_not_know_its_pods(
    minimal: "Minimal", root: Path, run: Run
) -> None:
    held: dict[tuple[str, str], dict[str, Sequence[ClaimInfo]]] = {}

    async def story() -> None:
        registry = Registry()
        registry.load("claimed", minimal, "d").section = PluginSection(serve="dra")
        looks = PodResources(socket, root / "holders.json", lambda: registry.routes("device"), Runner())
        held.update({("shop", "web-0"): {"main": [FIVE]}, ("shop", "other"): {"main": []}})
        await looks.look()
        assert looks.users_of("shop", "five") == [("web-0", "main")]
        assert looks.users_of("other", "five") == looks.users_of("shop", "six") == []
        held.clear()
        await looks.look()
        assert looks.users_of("shop", "five") == [("web-0", "main")]
        held["shop", "other"] = {"main": []}
        await looks.look()
        assert looks.users_of("shop", "five") == []

    socket = root / "kubelet.sock"
    kubelet = podresources.PodResources(socket, lambda: held)
    try:
        run(story())
    finally:
        kubelet.stop()
