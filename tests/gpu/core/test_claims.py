"""What claims hold, in the accounts of the GPU plugin: each unit once, whoever uses it, and named as soon as may be."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nodeplug import DeviceAllocate, DeviceId, Holding, InvalidRequest, ResourceClaim, ResourceName
from nodeplug_gpu import report
from nodeplug_gpu.claimed import for_claims
from nodeplug_gpu.cluster import ClusterView
from nodeplug_gpu.config import GpuConfig, Memory
from nodeplug_gpu.gpushare import details
from nodeplug_gpu.ids import card_key
from nodeplug_gpu.metrics import metrics
from nodeplug_gpu.overuse import OveruseWatch
from nodeplug_gpu.sharers import sharers

MEM = ResourceName("aliyun.com/gpu-mem")
GIB = 1 << 30
Make = Callable[..., Any]


def units(card: Any, count: int, first: int = 0) -> list[DeviceId]:
    return [DeviceId(f"{card_key(card.uuid)}-{first + number}") for number in range(count)]


def of_claim(name: str) -> ResourceClaim:
    return ResourceClaim(uid=f"uid-{name}", namespace="shop", name=name, request="gpu")


def held(claim: str, ids: Sequence[DeviceId], *containers: str) -> list[Holding]:
    """What a claim holds, by each container `pod/container` that uses it."""
    return [
        Holding(
            resource=MEM,
            ids=tuple(ids),
            namespace="shop",
            pod=one.partition("/")[0],
            container=one.partition("/")[2],
            claim=of_claim(claim),
        )
        for one in containers or ("",)
    ]


@pytest.fixture
def claimed(make_node: Make, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A node whose holders are given as they are."""

    def make(cards: Sequence[Any], *holdings: Holding, resources: Sequence[Mapping[str, Any]] = ()) -> Any:
        node = make_node(resources or [{"sharing": "memory"}], cards)
        monkeypatch.setattr(node, "_holders", lambda name: [one for one in holdings if one.resource == name])
        object.__setattr__(node.host, "_holders", node._holders)
        node.update(after=1.0)
        return node

    return make


def document(node: Any) -> Mapping[str, Any]:
    return report.document(node.config, node.tracker, OveruseWatch({}, node.tracker.host))


def samples(node: Any, name: str) -> list[tuple[dict[str, str], float]]:
    made = {one.name: one for one in metrics(node.config, node.tracker, OveruseWatch({}, node.tracker.host))}
    return [(dict(one.labels), one.value / GIB) for one in made[name].samples] if name in made else []


def test_containers_that_share_a_claim_are_told_each_and_counted_once(claimed: Make, card: Make) -> None:
    node = claimed([card(0, 8)], *held("five", units(card(0), 5), "web/main", "web/side"))
    (shown,) = document(node)["cards"]
    assert shown["allocated_units"] == 5
    assert [
        (one["container"], one["units"], one["card_units"], one["allocated_bytes"], one["claims"])
        for one in shown["containers"]
    ] == [("main", 5, 5, 5 * GIB, ["shop/five"]), ("side", 5, 0, 5 * GIB, ["shop/five"])]
    assert document(node)["resources"][0]["allocated"] == 5
    assert [value for _, value in samples(node, "gpu_container_allocated_bytes")] == [5.0, 5.0]
    assert samples(node, "gpu_memory_allocated_bytes") == [({"card": "GPU-0"}, 5.0)]
    assert "web" in details("n", "a", [shown])
    assert "8/8" not in details("n", "a", [shown])


def test_claims_whose_containers_are_not_known_have_one_sample_together_and_a_line_each(
    claimed: Make, card: Make
) -> None:
    node = claimed([card(0, 8)], *held("five", units(card(0), 5)), *held("two", units(card(0), 2, 5)))
    labels = {"card": "GPU-0", "namespace": "shop", "pod": "", "container": ""}
    assert samples(node, "gpu_container_allocated_bytes") == [(labels, 7.0)]
    (shown,) = document(node)["cards"]
    assert [(one["claims"], one["units"]) for one in shown["containers"]] == [(["shop/five"], 5), (["shop/two"], 2)]
    assert shown["allocated_units"] == 7
    assert "claim shop/five" in details("n", "a", [shown])


def test_a_container_with_two_claims_of_a_card_has_both_together(claimed: Make, card: Make) -> None:
    both = *held("five", units(card(0), 5), "web/main"), *held("two", units(card(0), 2, 5), "web/main")
    node = claimed([card(0, 8)], *both)
    (shown,) = document(node)["cards"][0]["containers"]
    assert (shown["units"], shown["allocated_bytes"], shown["claims"]) == (7, 7 * GIB, ["shop/five", "shop/two"])
    ((labels, value),) = samples(node, "gpu_container_allocated_bytes")
    assert (labels["pod"], value) == ("web", 7.0)


def test_what_was_shared_by_a_former_resource_is_counted_once_too(claimed: Make, card: Make) -> None:
    made = held("five", units(card(0), 5), "web/main", "web/side")
    node = claimed([card(0, 8)], *made)
    holders = node._holders
    node.configure([{"sharing": "memory", "resource": "example.com/mem"}], section="gpu")
    object.__setattr__(node.host, "_holders", holders)
    node.update(after=1.0)
    (shown,) = document(node)["cards"]
    assert shown["allocated_units"] == 5
    assert sum(one["card_units"] for one in shown["containers"]) == 5
    assert [one["allocated"] for one in document(node)["resources"] if one["resource"] == MEM] == [5]


def test_a_card_that_waits_names_the_claim_that_has_it(claimed: Make, card: Make) -> None:
    node = claimed([card(0, 8)], *held("five", units(card(0), 5)))
    holders = node._holders
    node.configure([{"sharing": "exclusive", "resource": "nvidia.com/gpu"}], section="gpu")
    object.__setattr__(node.host, "_holders", holders)
    node.update(after=1.0)
    assert set(node.listed("nvidia.com/gpu").values()) == {
        f"it was advertised as {MEM} (memory), and it is allocated to claim shop/five"
    }


def test_who_shares_is_known_by_the_units(claimed: Make, card: Make) -> None:
    node = claimed(
        [card(0, 8)],
        *held("five", units(card(0), 5), "web/main", "web/side"),
        *held("two", units(card(0), 2, 5), "other/main"),
    )
    found = sharers(node.tracker.inventory.allocations)
    assert {who.name for who, _ in found} == {"main", "side"}
    assert {who.pod for who, _ in found} == {"web"}
    assert {one.allocated_bytes for one in found.values()} == {5 * GIB}


def test_units_of_two_cards_for_one_request_are_refused_with_what_to_do(claimed: Make, card: Make) -> None:
    node = claimed([card(0, 8), card(1, 8)])
    sharing, pool = node.tracker.inventory.advertised(node.tracker.entry_of(MEM), MEM)
    ids = (*units(card(0), 1), *units(card(1), 1))
    with pytest.raises(InvalidRequest, match=r"request gpu of claim shop/both has units of 2 cards.*each container"):
        sharing.allocate(DeviceAllocate(resource=MEM, ids=ids, devices=(), claim=of_claim("both")), pool)


def test_a_configuration_for_claims_withholds_nothing_writes_nothing_for_gpushare_and_has_no_annotations() -> None:
    entry = {"sharing": "memory", "withhold": "always", "access": {"cdi": "annotation"}}
    before = GpuConfig.model_validate({"resources": [entry], "gpushare": True})
    made = for_claims(before)
    (changed,) = made.resources
    assert isinstance(changed, Memory)
    assert (changed.withhold, changed.access.cdi, made.gpushare) == ("never", "field", False)
    (kept,) = before.resources
    assert (kept.access.cdi, before.gpushare) == ("annotation", True)


@pytest.mark.parametrize("claims", [False, True])
def test_what_is_free_is_told_to_nodeplugs_extender_only_where_kubelet_gives_units(
    claimed: Make, card: Make, tmp_path: Path, *, claims: bool
) -> None:
    node = claimed([card(0, 8)], *held("five", units(card(0), 5), "web/main"))
    object.__setattr__(node.tracker.host, "serves_claims", claims)
    view = ClusterView(node.config, node.tracker, OveruseWatch({}, node.tracker.host), "node-1")
    view.update()
    assert view.latest is not None
    assert (view.latest.annotations == {}) is claims
    assert view.latest.pods == ()
