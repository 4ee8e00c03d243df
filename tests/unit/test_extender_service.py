"""How many calls of extenders run at once, and what becomes of more."""

import asyncio
import json
import threading
from typing import Any

import pytest

from nodeplug import Claim, ExtenderClaim, ExtenderVerdict, hookimpl
from nodeplug.extender import service
from nodeplug.extender.service import ExtenderService
from nodeplug.hosting.registry import Registry
from nodeplug.hosting.runner import Runner
from nodeplug.http.server import Request

BODY = json.dumps({"Pod": {"metadata": {"name": "a"}}, "NodeNames": ["n"]}).encode()


class Waits:
    """Answers when it may, and knows how many calls were inside at once."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.inside = self.most = 0
        self._lock = threading.Lock()

    @hookimpl
    def claims(self) -> list[Claim]:
        return [ExtenderClaim("waits")]

    @hookimpl
    def extender_filter(self, request: Any) -> ExtenderVerdict:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        assert self.go.wait(60)
        with self._lock:
            self.inside -= 1
        return ExtenderVerdict(nodes=("n",))


def served(plugin: Waits, concurrency: int) -> ExtenderService:
    registry = Registry()
    registry.load("waits", plugin, "d")
    return ExtenderService(registry, Runner(), concurrency)


async def ask(extenders: ExtenderService) -> str:
    answer = await extenders.answer(Request("POST", "/waits/filter", body=BODY))
    return str(json.loads(answer.body)["Error"])


def test_calls_beyond_the_limit_wait_for_a_place() -> None:
    async def story() -> None:
        plugin = Waits()
        extenders = served(plugin, 2)
        calls = [asyncio.create_task(ask(extenders)) for _ in range(6)]
        while plugin.inside < 2:
            await asyncio.sleep(0)
        plugin.go.set()
        assert await asyncio.gather(*calls) == [""] * 6
        assert plugin.most == 2

    asyncio.run(story())


def test_a_call_that_waits_too_long_is_told_how_many_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "_PATIENCE", 0.01)

    async def story() -> None:
        plugin = Waits()
        extenders = served(plugin, 1)
        first = asyncio.create_task(ask(extenders))
        while plugin.inside < 1:
            await asyncio.sleep(0)
        assert "no place is free: at most 1 calls of extenders run at once" in await ask(extenders)
        plugin.go.set()
        assert await first == ""

    asyncio.run(story())


def test_calls_wait_while_another_daemon_takes_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        plugin = Waits()
        plugin.go.set()
        extenders = served(plugin, 1)
        extenders.hold()
        held = asyncio.create_task(ask(extenders))
        await asyncio.sleep(0.02)
        assert plugin.most == 0
        extenders.release()
        assert await held == ""
        monkeypatch.setattr(service, "_PATIENCE", 0.01)
        extenders.hold()
        assert "another daemon is about to take over; ask again" in await ask(extenders)

    asyncio.run(story())
