"""The stand-in's choice of devices follows kubelet's steps."""

import asyncio
from collections.abc import Collection
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodeplug.testing.kubelet.allocation import AdmissionError, DeviceTable, Prefer, Want, pick

NO_NODES: frozenset[int] = frozenset()


def table(*healthy: str, unhealthy: Collection[str] = (), node: int | None = None) -> DeviceTable:
    nodes = NO_NODES if node is None else frozenset({node})
    return DeviceTable(dict.fromkeys(healthy, nodes), dict.fromkeys(unhealthy, nodes))


def want(
    required: int,
    *,
    held: Collection[str] = (),
    reusable: Collection[str] = (),
    in_use: Collection[str] = (),
    numa: Collection[int] | None = None,
) -> Want:
    hint = None if numa is None else frozenset(numa)
    return Want("example.com/thing", required, frozenset(held), frozenset(reusable), set(in_use), hint)


def choose(wanted: Want, devices: DeviceTable | None, prefer: Prefer | None = None, seed: int = 0) -> frozenset[str]:
    return asyncio.run(pick(wanted, devices, prefer, Random(seed)))


def preferring(*answer: str) -> tuple[Prefer, list[tuple[set[str], set[str], int]]]:
    asked: list[tuple[set[str], set[str], int]] = []

    async def prefer(available: Collection[str], must: Collection[str], size: int) -> Collection[str]:
        asked.append((set(available), set(must), size))
        return answer

    return prefer, asked


@pytest.mark.parametrize(
    ("wanted", "devices", "text"),
    [
        (want(1), None, "cannot allocate unregistered device example.com/thing"),
        (want(1), table(unhealthy=["a"]), "no healthy devices present; cannot allocate unhealthy devices"),
        (want(0), table(unhealthy=["a"]), "no healthy devices present"),
        (want(1, held=["a"]), table("b", unhealthy=["a"]), "previously allocated devices are no longer healthy"),
        (want(2, held=["a"]), table("a", "b"), "changed request"),
        (
            want(3, in_use=["a"]),
            table("a", "b", "c"),
            "requested number of devices unavailable for example.com/thing. Requested: 3, Available: 2",
        ),
    ],
)
def test_rejection_uses_kubelets_sentence(wanted: Want, devices: DeviceTable | None, text: str) -> None:
    with pytest.raises(AdmissionError, match=text):
        choose(wanted, devices)


def test_container_that_holds_its_devices_gets_no_more() -> None:
    assert choose(want(1, held=["a"], in_use=["a"]), table("a", "b")) == frozenset()


def test_devices_of_init_containers_are_taken_first_and_without_asking() -> None:
    prefer, asked = preferring("c")
    assert choose(want(1, reusable=["a"], in_use=["a"]), table("a", "b", "c"), prefer) == {"a"}
    assert asked == []


def test_reused_devices_must_be_included_and_count_towards_the_size() -> None:
    prefer, asked = preferring("a", "c")
    assert choose(want(2, reusable=["a"], in_use=["a"]), table("a", "b", "c"), prefer) == {"a", "c"}
    assert asked == [({"a", "b", "c"}, {"a"}, 2)]


def test_short_and_bogus_preference_is_filled_up() -> None:
    prefer, _ = preferring("b", "bogus")
    found = choose(want(2), table("a", "b", "c"), prefer)
    assert "b" in found
    assert len(found) == 2
    assert found < {"a", "b", "c"}


def test_aligned_devices_are_taken_whole_without_asking() -> None:
    prefer, asked = preferring("c")
    devices = DeviceTable({"a": frozenset({0}), "b": frozenset({0}), "c": frozenset({1})})
    assert choose(want(2, numa=[0]), devices, prefer) == {"a", "b"}
    assert asked == []


def test_preference_is_asked_among_the_aligned_devices_alone() -> None:
    prefer, asked = preferring("b")
    devices = DeviceTable({"a": frozenset({0}), "b": frozenset({0}), "c": frozenset({1})})
    assert choose(want(1, numa=[0]), devices, prefer) == {"b"}
    assert asked == [({"a", "b"}, set(), 1)]


@pytest.mark.parametrize("numa", [None, [0]])
def test_ids_that_another_container_took_meanwhile_are_left_out(numa: Collection[int] | None) -> None:
    wanted = want(1, numa=numa)

    async def prefer(available: Collection[str], must: Collection[str], size: int) -> Collection[str]:
        del available, must, size
        wanted.in_use.update({"a", "c"})
        return ["a"]

    assert choose(wanted, table("a", "b", "c", node=0), prefer) == {"b"}


def test_too_few_are_left_when_others_took_them_meanwhile() -> None:
    wanted = want(2)

    async def prefer(available: Collection[str], must: Collection[str], size: int) -> Collection[str]:
        del must, size
        wanted.in_use.update(set(available) - {"a"})
        return []

    with pytest.raises(AdmissionError, match=r"unexpectedly allocated less .* Requested: 2, Got: 1"):
        choose(wanted, table("a", "b", "c"), prefer)


def test_same_seed_chooses_the_same_devices() -> None:
    devices = table(*(f"d{number}" for number in range(50)))
    assert choose(want(5), devices, seed=1) == choose(want(5), devices, seed=1)
    assert len({choose(want(5), devices, seed=seed) for seed in range(20)}) > 1


def test_reused_device_may_be_unhealthy() -> None:
    assert choose(want(1, reusable=["a"], in_use=["a"]), table("b", unhealthy=["a"])) == {"a"}


@pytest.mark.parametrize(
    ("wanted", "devices", "text"),
    [
        (want(1), None, "can't allocate unregistered device example.com/thing"),
        (want(1), table(unhealthy=["a"]), "Requested: 1, Available: 0"),
        (want(0), table(unhealthy=["a"]), ""),
        (want(1, held=["a"]), table("b", unhealthy=["a"]), ""),
        (want(1, held=["a"]), None, ""),
    ],
)
def test_old_kubelet_asks_less(wanted: Want, devices: DeviceTable | None, text: str) -> None:
    old = replace(wanted, old_style=True, in_use=set(wanted.in_use), taken=set())
    if text:
        with pytest.raises(AdmissionError, match=text):
            choose(old, devices)
    else:
        assert choose(old, devices) == frozenset()


names = st.frozensets(st.sampled_from([f"d{number}" for number in range(12)]))


@given(names, names, st.integers(1, 12), st.integers(0, 99))
def test_choice_is_complete_healthy_and_free(
    healthy: frozenset[str], used: frozenset[str], size: int, seed: int
) -> None:
    if not healthy or len(healthy - used) < size:
        with pytest.raises(AdmissionError):
            choose(want(size, in_use=used), table(*healthy), seed=seed)
        return
    found = choose(want(size, in_use=used), table(*healthy), seed=seed)
    assert len(found) == size
    assert found <= healthy - used
