"""What a plugin is told of the cluster when the daemon is late."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest

from nodeplug.contract.errors import TryAgain, Uncertain
from nodeplug.extender import followed
from nodeplug.extender.followed import BlockingScheduling, FollowedCluster


class SilentCluster:
    """One that never answers."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def bind(self, *_: str) -> None:
        await asyncio.sleep(3600)

    async def pod(self, *_: str) -> None:
        await asyncio.sleep(3600)


def test_nobody_knows_what_became_of_a_binding_whose_answer_does_not_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(followed, "_IN_A_CALL", SimpleNamespace(request=0.01))
    monkeypatch.setattr(followed, "_GRACE", 0.0)

    async def live() -> None:
        asked = BlockingScheduling(cast("FollowedCluster", SilentCluster()))
        with pytest.raises(Uncertain, match="no answer within"):
            await asyncio.to_thread(asked.bind, "default", "web", "uid", "node-1")
        with pytest.raises(TryAgain, match="no answer within"):
            await asyncio.to_thread(asked.pod, "default", "web")

    asyncio.run(live())
