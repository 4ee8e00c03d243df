"""Random lives of a node with shared cards: pods, restarts, faults. Kubelet's rules are those of the stand-in.

A failing life names its seed; NODEPLUG_GPU_SEED=<seed> runs that one alone, NODEPLUG_GPU_LIVES=<n> more of
them in the suite soak.
"""

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nodeplug.testing import AdmissionError
from nodeplug_gpu.ids import by_card

SEED = os.environ.get("NODEPLUG_GPU_SEED")
LIVES = int(os.environ.get("NODEPLUG_GPU_LIVES", "40"))
STEPS = 500
GIB = 1 << 30


class Life:
    """One node and what happens on it.

    Attributes:
        counts: how often each thing happened, so that a life in which nothing happens is noticed.
    """

    def __init__(self, node: Any, seed: int) -> None:
        self.random, self.node = Random(seed), node
        self.pods: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.number = 0
        self.sizes: dict[str, int] = {}

    async def step(self) -> None:
        steps = {
            self.admit: 40,
            self.admit_two: 8,
            self.admit_init: 12,
            self.remove: 38,
            self.restart_kubelet: 3,
            self.restart_plugin: 3,
            self.vanish: 4,
            self.come_back: 6,
            self.fall_ill: 4,
            self.pass_time: 10,
        }
        chosen = self.random.choices(list(steps), list(steps.values()))[0]
        self.counts[chosen.__name__] += 1
        await chosen()
        self.check()

    # --- pods

    async def admit(self) -> None:
        await self._admit("app", self._wanted(), fits=True)

    async def admit_two(self) -> None:
        """Two containers of one pod; each is on one card, not both on the same one."""
        name = self._name()
        for container in ("one", "two"):
            if not await self._admit(container, self._wanted(), pod=name, fits=True):
                return

    async def admit_init(self) -> None:
        """An init container's ids are used again, and pin the card: one that asks for less may be refused wrongly."""
        name, first = self._name(), self._wanted()
        if not await self._admit("init", first, pod=name, fits=True, init=True):
            return
        second = max(1, first + self.random.choice((-2, 0, 0, 3)))
        pinned = by_card(self.node.ids(name, "init"))
        assert len(pinned) == 1
        card = next(iter(pinned))
        own = sum(1 for one in self.node.free() if one.startswith(card)) + first
        done = await self._admit("app", second, pod=name, fits=False)
        assert done or second > own, f"{second} of the {own} units of the init container's card were refused"
        assert done or second > first, "an init container that is as large never gets its pod refused"

    async def _admit(self, container: str, size: int, *, fits: bool, pod: str = "", init: bool = False) -> bool:
        pod = pod or self._name()
        free = Counter(one.partition("-")[0] for one in self.node.free())
        self.pods[pod] = self.pods.get(pod, 0)
        try:
            granted = await self.node.admit(pod, container, size, init=init)
        except AdmissionError as error:
            self.counts["refused"] += 1
            self.pods.pop(pod)
            if fits and max(free.values(), default=0) >= size:
                pytest.fail(f"{size} refused, free are {free}: {error}")
            return False
        self.counts["granted"] += 1
        self.pods[pod] += size
        self.check_environment(pod, container, size, dict(granted.envs))
        return True

    def check_environment(self, pod: str, container: str, size: int, env: dict[str, str]) -> None:
        ids = self.node.ids(pod, container)
        cards = by_card(ids)
        assert len(cards) == 1, f"{sorted(ids)} are of {len(cards)} cards"
        card = self.node.cards[next(iter(cards))]
        assert env["ALIYUN_COM_GPU_MEM_POD"] == env["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(size) == str(len(ids))
        assert env["ALIYUN_COM_GPU_MEM_DEV"] == str(card.memory // GIB)
        assert env["ALIYUN_COM_GPU_MEM_IDX"] == str(card.minor)
        assert env["NVIDIA_VISIBLE_DEVICES"] == env["NODEPLUG_GPU_UUID"] == card.uuid
        assert env["NODEPLUG_GPU_MEMORY_BYTES"] == str(size * GIB)

    async def remove(self) -> None:
        if self.pods:
            name = self.random.choice(sorted(self.pods))
            self.pods.pop(name)
            self.node.remove(name)

    # --- the node

    async def restart_kubelet(self) -> None:
        self.node.restart_kubelet()

    async def restart_plugin(self) -> None:
        before = self.node.listed()
        self.node.restart_plugin()
        after = self.node.listed()
        assert before.keys() == after.keys(), "a restart changed which units there are"

    async def vanish(self) -> None:
        if self.node.present:
            self.node.present.discard(self.random.choice(sorted(self.node.present)))
            self.node.update()

    async def come_back(self) -> None:
        gone = sorted(self.node.all - self.node.present)
        if gone:
            self.node.present.add(self.random.choice(gone))
            self.node.update()

    async def fall_ill(self) -> None:
        if self.node.present:
            self.node.xid(self.random.choice(sorted(self.node.present)), 79)

    async def pass_time(self) -> None:
        self.node.pass_time(self.random.choice((1.0, 70.0, 70.0)))

    # --- what always holds

    def check(self) -> None:
        listed, held = self.node.listed(), self.node.held()
        all_ids = [one for ids in held.values() for one in ids]
        assert len(all_ids) == len(set(all_ids)), "one id is held twice"
        assert set(all_ids) <= listed.keys(), f"held and no longer listed: {sorted(set(all_ids) - listed.keys())[:3]}"
        for key, ids in by_card(all_ids).items():
            assert len(ids) * GIB <= self.node.cards[key].memory, "more is promised than the card has"
        for key, ids in by_card(listed).items():
            assert len({listed[one] for one in ids}) == 1, "half a card is healthy"
            assert self.sizes.setdefault(str(key), len(ids)) == len(ids), "a card changed its number of units"

    def _wanted(self) -> int:
        return self.random.choice((1, 1, 2, 3, 4, 6, 8, 12, 16, 24))

    def _name(self) -> str:
        self.number += 1
        return f"pod-{self.number}"


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@pytest.mark.parametrize("lives", [1, pytest.param(LIVES // 2, marks=pytest.mark.soak)])
def test_no_container_gets_units_of_two_cards_in_any_life(
    lives: int, policy: str, tmp_path: Path, gpu_node: Any
) -> None:
    counts: Counter[str] = Counter()
    for seed in [int(SEED)] if SEED else range(lives):
        life = Life(gpu_node(tmp_path / str(seed), policy, seed), seed)

        async def story(life: Life = life) -> None:
            for _ in range(STEPS):
                await life.step()

        try:
            asyncio.run(story())
        except (Exception, pytest.fail.Exception) as error:
            pytest.fail(f"NODEPLUG_GPU_SEED={seed} ({policy}): {type(error).__name__}: {error}")
        counts += life.counts
    assert SEED or min(counts[name] for name in ("granted", "refused", "vanish", "restart_plugin")) > 2 * lives
