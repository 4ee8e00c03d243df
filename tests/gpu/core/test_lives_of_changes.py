"""Random lives in which administrator, driver and kubelet change their minds: no card is ever allocated in two ways.

A failing life names its seed; NODEPLUG_GPU_SEED=<seed> runs that one alone.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any

import pytest

from nodeplug import NotFound, PluginError
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.limits import limits_of

MEM, WHOLE, SHARED, MIG = "aliyun.com/gpu-mem", "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig"
NAMES = (MEM, WHOLE, SHARED, MIG)
SEED = os.environ.get("NODEPLUG_GPU_SEED")
STEPS = 200
SECTIONS = ("gpu", "cards", "gpus")


def of(entry: Mapping[str, Any], *indexes: int) -> dict[str, Any]:
    return {**entry, "cards": {"index": indexes}}


MEMORY = {"sharing": "memory"}
EXCLUSIVE = {"sharing": "exclusive", "resource": WHOLE}
REPLICAS = {"sharing": "replicas", "resource": SHARED, "replicas": 3}
SINGLE = {"sharing": "mig", "resource": MIG}
CONFIGURATIONS: Sequence[Sequence[Mapping[str, Any]]] = (
    [MEMORY, SINGLE],
    [EXCLUSIVE, SINGLE],
    [of(MEMORY, 0, 1), of(EXCLUSIVE, 2, 3)],
    [of(MEMORY, 2, 3), of(EXCLUSIVE, 0), of(REPLICAS, 1), SINGLE],
    [MEMORY | {"unit": "512Mi"}, SINGLE],
    [EXCLUSIVE | {"sharing": "replicas", "replicas": 2}],
    [of(REPLICAS, 0, 1, 2), of(MEMORY | {"reserve": "3Gi"}, 3)],
    [MEMORY | {"mps": {}}, SINGLE],
    [REPLICAS | {"mps": {}}, SINGLE],
    [REPLICAS | {"mps": {}, "replicas": 5}, SINGLE],
)


class Life:
    def __init__(
        self, make_node: Callable[..., Any], card: Callable[..., Any], divided: Callable[..., Any], seed: int
    ) -> None:
        self.random = Random(seed)
        self.card, self.divided = card, divided
        self.truth: dict[str, tuple[str, tuple[str, ...], str, str, int]] = {}
        self.batch = 0
        self.configuration, self.section = CONFIGURATIONS[0], SECTIONS[0]
        self.node = make_node(self.configuration, [card(number, 8) for number in range(4)])
        self.counts: Counter[str] = Counter()

    def step(self) -> None:
        steps = {self.grant: 40, self.release: 25, self.configure: 3, self.restart: 2, self.vanish: 2,
                 self.come_back: 4, self.switch: 2, self.driver: 2, self.wait: 12}  # fmt: skip
        chosen = self.random.choices(list(steps), list(steps.values()))[0]
        self.counts[chosen.__name__] += 1
        chosen()
        self.check()

    # --- pods

    def grant(self) -> None:
        name = self.random.choice(NAMES)
        used = {one for resource, ids, *_ in self.truth.values() if resource == name for one in ids}
        try:
            healthy = [one for one, reason in self.node.listed(name).items() if not reason and one not in used]
        except StopIteration:  # nobody advertises it at present
            return
        if not healthy:
            return
        first = self.random.choice(healthy)
        ids = [first]
        if name == MEM:
            ids = [one for one in healthy if one.partition("-")[0] == first.partition("-")[0]][
                : self.random.randint(1, 5)
            ]
        try:
            self.node.allocate(name, *ids)
        except (PluginError, NotFound) as error:
            if "under its former limits" in str(error):  # its holder has gone and kubelet has not told yet
                return
            pytest.fail(f"{name} {ids}: {error}")
        self.node.tracker.allocated(name)
        entry = self.node.tracker.entry_of(name)
        size = self.node.tracker.sharings[name].unit * len(ids) if entry.sharing == "memory" else 0
        way = f"{entry.sharing} {limits_of(entry)}"
        self.truth[f"pod-{self.counts['grant']}"] = (name, tuple(ids), self._card(ids[0]), way, size)
        self.counts["granted"] += 1

    def release(self) -> None:
        if self.truth:
            self.truth.pop(self.random.choice(sorted(self.truth)))

    def wait(self) -> None:
        for _ in range(self.random.choice((1, 1, 8, 20))):
            told: dict[str, dict[str, Sequence[str]]] = {}
            for pod, (name, ids, *_) in self.truth.items():
                told.setdefault(name, {})[pod] = ids
            self.node.held = told
            self.node.update(after=10.0)

    # --- the administrator

    def configure(self) -> None:
        self.configuration, self.section = self.random.choice(CONFIGURATIONS), self.random.choice(SECTIONS)
        self.node.configure(self.configuration, self.section)

    def restart(self) -> None:
        if self.random.random() < 0.5:
            self.node.held = None  # the daemon has not heard of kubelet yet
        self.node.configure(self.configuration, self.section)

    # --- the machine

    def vanish(self) -> None:
        if self.node.cards:
            self.node.cards.pop(self.random.randrange(len(self.node.cards)))
            self.node.update(after=1.0)

    def come_back(self) -> None:
        gone = sorted(set(range(4)) - {self._number(card.uuid) for card in self.node.cards})
        if gone:
            self.node.cards.insert(0, self.card(self.random.choice(gone), 8))
            self.node.cards.sort(key=lambda card: card.uuid)
            self.node.update(after=1.0)

    def switch(self) -> None:
        """Switch a card's MIG mode, or divide it anew; NVML refuses that only while a process runs."""
        if self.node.cards:
            place = self.random.randrange(len(self.node.cards))
            number = self._number(self.node.cards[place].uuid)
            self.batch += 1
            divided = self.divided(number, "1g.10gb", "1g.10gb", batch=f"b{self.batch}-")
            self.node.cards[place] = self.random.choice((divided, divided, self.card(number, 8)))
            self.node.update(after=1.0)

    def driver(self) -> None:
        self.node.state = self.random.choice(("running", "running", "absent", "failed"))
        self.node.update(after=1.0)
        self.node.state = "running"
        self.node.update(after=1.0)

    # --- what always holds

    def check(self) -> None:
        by_card: dict[str, list[tuple[str, tuple[str, ...], str, str, int]]] = {}
        for one in self.truth.values():
            by_card.setdefault(one[2], []).append(one)
        for card, held in by_card.items():
            ways = {(name, sharing) for name, _, _, sharing, _ in held}
            assert len(ways) == 1, f"{card} is held in two ways: {sorted(ways)}"
            assert sum(size for *_, size in held) <= 8 << 30, f"{card} is overcommitted"
            if next(iter(ways))[1].startswith("exclusive"):
                assert len(held) == 1, f"{card} is held whole by {len(held)}"
        if self.node.held is None:
            return
        for name, ids, *_ in self.truth.values():
            told = {one for ids in self.node.held.get(name, {}).values() for one in ids}
            if any(name in _names(entry) for entry in self.configuration) and set(ids) <= told:
                assert set(ids) <= self.node.listed(name).keys(), f"{ids} of {name} are held and not listed"

    def _card(self, name: str) -> str:
        return next(
            f"GPU-{number}"
            for number in range(4)
            if name == f"GPU-{number}" or name.startswith((f"MIG-{number}-", f"{card_key(self.card(number).uuid)}-"))
        )

    def _number(self, uuid: str) -> int:
        return int(uuid.removeprefix("GPU-"))


def _names(entry: Mapping[str, Any]) -> tuple[str, ...]:
    return (entry.get("resource", MEM),)


@pytest.mark.parametrize("lives", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_no_card_is_advertised_twice_in_any_life_of_changes(
    lives: int, make_node: Any, card: Any, divided: Any, tmp_path: Any
) -> None:
    counts: Counter[str] = Counter()
    for seed in [int(SEED)] if SEED else range(lives):
        for file in tmp_path.glob("*/journal/*.json"):
            file.unlink()
        life = Life(make_node, card, divided, seed)
        try:
            for _ in range(STEPS):
                life.step()
        except (Exception, pytest.fail.Exception) as error:
            pytest.fail(f"NODEPLUG_GPU_SEED={seed}, step {sum(life.counts.values())}: {type(error).__name__}: {error}")
        counts += life.counts
    assert SEED or counts["granted"] > 10 * lives
