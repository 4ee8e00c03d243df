"""The extender's model and kubelet agree: on whom each of them admits, on the cards, and on whom they reject."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodeplug import DeviceId, ResourceName
from nodeplug.testing import AdmissionError
from nodeplug.testing.kubelet.admission import Container
from nodeplug.testing.kubelet.ledger import ContainerKey
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.extender.assumptions import Assumed, Assumptions
from nodeplug_gpu.extender.model import NodeModel, Placed
from nodeplug_gpu.extender.wants import Want
from nodeplug_gpu.free_memory import FreeMemory, annotation_of, decode
from nodeplug_gpu.ids import CardKey, by_card
from nodeplug_gpu.overuse import OveruseWatch

MEM = ResourceName("aliyun.com/gpu-mem")
KINDS = st.sampled_from(["init", "init", "sidecar"])
UNITS = st.sampled_from([1, 2, 3, 5, 8, 13, 20])
WANTS = st.tuples(
    st.lists(st.builds(Want, KINDS, UNITS), max_size=2), st.lists(st.builds(Want, st.just("app"), UNITS), max_size=2)
).map(lambda both: (*both[0], *both[1]))
STEPS = st.lists(
    st.tuples(st.lists(WANTS.filter(bool), max_size=4), st.sets(st.integers(0, 40), max_size=4), st.booleans()),
    min_size=3,
    max_size=10,
)


class Life:
    """A node with cards, kubelet, and the extender, which binds every pod that there is to it."""

    def __init__(self, node: Any) -> None:
        self.node, self.known = node, Assumptions()
        self.view = ClusterView(node.config, node.tracker, OveruseWatch({}, node.tracker.host), "n")
        self.now, self.pods, self.names = 0.0, list[str](), 0
        self.published = self._published()

    def _published(self) -> FreeMemory:
        self.view.update()
        assert self.view.latest is not None
        return decode(self.view.latest.annotations[annotation_of(MEM)])

    async def bind(self, wants: Sequence[Want]) -> None:
        """Have a pod bound whatever the model says of it, and compare with what kubelet does."""
        self.names += 1
        name = f"p{self.names}"
        model = NodeModel.of(self.published, self.known.under_way("n", self.published, self.now).strangers)
        self.known.assume(Assumed(f"uid-{name}", "default", name, "n", wants, self.now), self.published)
        expected, verdict = model.place(wants), model.judge(wants)
        assert min(model.free.values()) >= 0
        try:
            await self._admit(name, wants)
        except AdmissionError:
            assert expected is None
            assert verdict in {"full", "never"}
            self.known.forget(f"uid-{name}")
            return
        assert (expected is not None, verdict) == (True, "fits")
        self.pods.append(name)
        self._compare(name, wants, expected)

    async def _admit(self, name: str, wants: Sequence[Want]) -> None:
        for number, want in enumerate(wants):
            key = ContainerKey("default", name, str(number))
            reusable = by_card(map(DeviceId, self.node.admission.ledger.reusable(key, MEM)))
            free = Counter({card: len(ids) for card, ids in by_card(map(DeviceId, self.node.free())).items()})
            try:
                await self.node.admission.admit(key, Container(want.kind, {MEM: want.units}))
            except AdmissionError:
                fresh = want.units - sum(map(len, reusable.values()))
                assert max((free[card] for card in reusable or free), default=0) < fresh, "a card had room"
                raise

    def _compare(self, name: str, wants: Sequence[Want], expected: Placed | None) -> None:
        assert expected is not None
        for number, card in enumerate(expected.cards):
            held = self.node.admission.ledger.held(ContainerKey("default", name, str(number)), MEM)
            assert set(by_card(map(DeviceId, held))) == {CardKey(card)}
            assert len(held) == wants[number].units

    def pass_time(self) -> None:
        """Let the node publish what it has by now."""
        self.node.pass_time(10.0)
        self.now += 10.0
        self.node.ask_kubelet()
        self.published = self._published()

    def remove(self, pods: set[str]) -> None:
        for name in pods:
            self.pods.remove(name)
            self.node.remove(name)
            self.known.forget(f"uid-{name}")


EXAMPLES = min(25, settings().max_examples // 2)


@pytest.mark.parametrize("policy", ["binpack", "spread"])
@given(steps=STEPS, seed=st.integers(0, 9))
@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_model_admits_whom_kubelet_admits_and_rejects_whom_no_card_has_room_for(
    gpu_node: Any, policy: str, steps: list[Any], seed: int
) -> None:
    async def live() -> None:
        with tempfile.TemporaryDirectory() as folder:
            life = Life(gpu_node(Path(folder) / "n", policy, seed))
            for bound, gone, settled in steps:
                for wants in bound:
                    await life.bind(wants)
                if settled:
                    life.remove({name for number, name in enumerate(life.pods) if number in gone})
                    life.pass_time()

    asyncio.run(live())


def test_units_that_have_become_free_since_the_cluster_was_told_lead_to_no_other_card(
    gpu_node: Any, tmp_path: Path
) -> None:
    async def live() -> None:
        node = gpu_node(tmp_path / "n", "binpack", 0, (8, 16))
        small, large = node.cards
        view = ClusterView(node.config, node.tracker, OveruseWatch({}, node.tracker.host), "n")
        for name, units in (("a", 5), ("b", 12)):
            await node.admit(name, "main", units)
        node.ask_kubelet()
        assert view.update()
        view.report()  # 3 and 4 are free
        node.remove("a")
        assert by_card_of(node, "c", await node.admit("c", "main", 3)) == small  # the other one is the fuller by now
        assert by_card_of(node, "d", await node.admit("d", "main", 5)) == small  # nothing else has so many
        node.ask_kubelet()
        view.update()
        view.report()  # 0 and 4
        node.remove("c")
        node.remove("d")
        node.ask_kubelet()
        view.update()
        view.report()  # 8 and 4
        assert by_card_of(node, "e", await node.admit("e", "main", 3)) == large

    def by_card_of(node: Any, pod: str, _: object) -> str:
        (card,) = by_card(map(DeviceId, node.ids(pod, "main")))
        return str(card)

    asyncio.run(live())
