"""What people see of `nodeplug gpu`: a document in, text out."""

import io
from typing import Any, Literal

import pytest
from rich.console import Console

from nodeplug_gpu.chart import WIDTH, chart

GIB = 1 << 30


def use(pod: str, units: int, **more: Any) -> dict[str, Any]:
    return {
        "namespace": "default",
        "pod": pod,
        "container": "main",
        "resource": "aliyun.com/gpu-mem",
        "units": units,
        "card_units": units,
        "orphaned": False,
        "allocated_bytes": units * GIB,
        "used_bytes": None,
        "utilization_percent": None,
        "overuse": False,
        "pids": [],
        **more,
    }


def card(*uses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "uuid": "GPU-0a",
        "index": 0,
        "model": "NVIDIA A10",
        "pci": "0000:01:00.0",
        "numa_node": None,
        "memory_bytes": 8 * GIB,
        "used_bytes": 0,
        "utilization_percent": None,
        "unattributed_bytes": 0,
        "state": "healthy",
        "allocatable": True,
        "reason": "",
        "state_seconds": 5.0,
        "resource": "aliyun.com/gpu-mem",
        "sharing": "memory",
        "limits": "none",
        "oversubscribe": 1.0,
        "unit_bytes": GIB,
        "units": 8,
        "allocated_units": sum(one["units"] for one in uses),
        "unconfirmed_units": 0,
        "instances": [],
        "containers": list(uses),
        "unallocated_containers": [],
        **more,
    }


def resource(name: str, **more: Any) -> dict[str, Any]:
    numbers = {"devices": 8, "healthy": 8, "allocated": 0, "unit_bytes": None}
    return {"resource": name, "sharing": "memory", "policy": None, "reason": "", "notes": [], **numbers, **more}


def report(*cards: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "node": "n",
        "driver": {"name": "nvml", "state": "running", "reason": "", "version": "570.1"},
        "conflict": "",
        "allocations_unknown": "",
        "cards": list(cards),
        "unadvertised": [],
        "unreadable": [],
        "resources": [],
        **more,
    }


def drawn(document: dict[str, Any], *, width: int = 200, colour: bool = False) -> list[str]:
    system: Literal["standard"] | None = "standard" if colour else None
    console = Console(width=width, file=io.StringIO(), force_terminal=colour, color_system=system)
    console.print(chart(document))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue().splitlines()


def bar(line: str) -> str:
    return line.partition("[")[2].partition("]")[0]


@pytest.mark.parametrize("words", ["kernel", "mps (a pod can raise them)", "none: compute capability unknown"])
def test_what_limits_are_worth_is_beside_its_card(words: str) -> None:
    assert f"  0/8 of aliyun.com/gpu-mem, limits: {words}" in "\n".join(drawn(report(card(limits=words))))


def test_a_container_that_is_not_limited_as_its_card_says_is_named() -> None:
    uses = [use("a", 2, limits="kernel"), use("b", 4, limits="none: the hook has not run")]
    lines = drawn(report(card(*uses, limits="kernel")))
    assert [line for line in lines if "limits: none" in line] == [
        "  B default/b/main  4 (4Gi), limits: none: the hook has not run",
    ]


def test_a_card_is_drawn_with_the_share_of_each_pod() -> None:
    lines = drawn(report(card(use("a", 2), use("b", 4, used_bytes=GIB), used_bytes=3 * GIB, numa_node=1)))
    assert lines[:7] == [
        "driver nvml 570.1: running",
        "",
        "GPU 0  NVIDIA A10  8Gi  NUMA node 1  healthy",
        "  GPU-0a",
        "  [AAAAAAAABBBBBBBBBBBBBBBB········]  6/8 of aliyun.com/gpu-mem, 3Gi in use",
        "  A default/a/main  2 (2Gi)",
        "  B default/b/main  4 (4Gi), 1Gi in use",
    ]


def test_a_pod_has_one_mark_on_all_cards_and_shares_it_with_nobody() -> None:
    pods = [f"p{number}" for number in range(60)]
    one = card(*(use(pod, 1) for pod in pods), units=60)
    other = card(use("p59", 1), use("p0", 1), index=1, uuid="GPU-0b")
    marks: dict[str, str] = {}
    for line in drawn(report(one, other)):
        if "/main" in line:
            mark, pod = line.split()[:2]
            assert marks.setdefault(pod, mark) == mark
    assert len(set(marks.values())) == len(pods)


def test_nothing_that_is_zero_is_told() -> None:
    text = "\n".join(drawn(report(card(use("a", 1, used_bytes=0)))))
    assert "in use" not in text
    assert "bytes" not in text


def test_a_small_share_of_a_large_card_is_seen() -> None:
    lines = drawn(report(card(use("a", 1), use("b", 1), units=10_000)))
    assert bar(lines[4]).startswith("AB·")


@pytest.mark.parametrize("units", [0, 1, 3, 7, 33, 100])
def test_a_bar_is_never_longer_than_it_may_be(units: int) -> None:
    lines = drawn(report(card(*(use(f"p{number}", 3) for number in range(40)), units=units)))
    assert len(bar(lines[4])) == WIDTH


def test_overuse_and_unattributed_memory_stand_out() -> None:
    lines = drawn(
        report(card(use("a", 1, used_bytes=5 * GIB, overuse=True), used_bytes=7 * GIB, unattributed_bytes=2 * GIB))
    )
    assert lines[4].endswith("7Gi in use, 2Gi of it unattributed")
    assert lines[5] == "  A default/a/main  1 (1Gi), 5Gi in use, OVER ITS ALLOCATION"


@pytest.mark.parametrize(
    ("facts", "shown"),
    [
        ({"state": "unhealthy", "allocatable": False, "reason": "XID 79"}, "unhealthy for 5 s: XID 79"),
        ({"state": "recovering", "allocatable": False, "reason": "x", "state_seconds": 150}, "recovering for 2 min: x"),
        ({"state": "suspect", "reason": "XID 999", "state_seconds": 9000}, "suspect for 2.5 h: XID 999"),
        ({"allocatable": False, "reason": "MPS does not run"}, "healthy, not allocatable: MPS does not run"),
    ],
)
def test_a_card_that_is_not_well_says_for_how_long_and_why(facts: dict[str, Any], shown: str) -> None:
    assert drawn(report(card(**facts)))[2].endswith(f"8Gi  {shown}")


def test_a_claim_is_named_until_its_containers_are_and_what_two_containers_share_is_drawn_once() -> None:
    unnamed = use("", 2, container="", claims=["default/two"])
    shared = [
        use("a", 4, claims=["default/four"]),
        use("a", 4, card_units=0, container="side", claims=["default/four"]),
    ]
    lines = drawn(report(card(unnamed, *shared, allocated_units=6)) | {"serve": "dra"})
    assert lines[0].endswith("; its devices are for claims")
    assert lines[4] == f"  [{'A' * 8}{'B' * 16}{'·' * 8}]  6/8 of aliyun.com/gpu-mem"
    assert lines[5:8] == [
        "  A claim default/two  2 (2Gi)",
        "  B default/a/main  4 (4Gi)",
        "  B default/a/side  4 (4Gi)",
    ]


def test_instances_are_told_with_what_they_are_advertised_as_and_who_holds_them() -> None:
    one = {"uuid": "MIG-1", "profile": "1g.10gb", "memory_bytes": 10 * GIB, "resource": "x.com/mig-1g"}
    one |= {"state": "healthy", "allocatable": True, "reason": "", "state_seconds": 5.0}
    ill = {"state": "unhealthy", "allocatable": False, "reason": "XID 94 (contained ECC error)"}
    instances = [
        one | {"containers": ["default/a/main"]},
        one | {"uuid": "MIG-2", "containers": []} | ill,
        one | {"uuid": "MIG-3", "profile": "3g.40gb", "resource": None, "containers": []},
    ]
    held = use("a", 1, allocated_bytes=None)
    lines = drawn(report(card(held, sharing="mig", units=3, instances=instances, unit_bytes=None)))
    assert lines[4].endswith("]  1/3 instances")
    assert lines[6:9] == [
        "  1g.10gb  MIG-1  x.com/mig-1g, allocated to default/a/main",
        "  1g.10gb  MIG-2  x.com/mig-1g  unhealthy for 5 s: XID 94 (contained ECC error)",
        "  3g.40gb  MIG-3  not advertised",
    ]


def test_unknown_holders_are_no_free_units() -> None:
    lines = drawn(
        report(
            card(allocated_units=None), resources=[resource("a", allocated=None)], allocations_unknown="nobody knows"
        )
    )
    assert lines[4] == f"  [{'?' * WIDTH}]  ?/8 of aliyun.com/gpu-mem"
    assert lines[-2].split() == ["a", "memory", "?", "8", "8"]
    assert lines[-1] == "nobody knows"


def test_cards_that_nobody_advertises_and_such_as_cannot_be_read_are_told() -> None:
    unsold = {"uuid": "GPU-0c", "index": 4, "model": "NVIDIA T4", "reason": "no entry chooses it"}
    text = "\n".join(drawn(report(unadvertised=[unsold], unreadable=["card 5 has no UUID"])))
    assert "GPU 4  NVIDIA T4  not advertised: no entry chooses it\n  GPU-0c\n" in text
    assert "card 5 has no UUID" in text


def test_the_driver_and_a_conflict_are_told_first() -> None:
    driver = {"name": "nvml", "state": "failed", "reason": "it hangs", "version": ""}
    assert drawn(report(driver=driver, conflict="both advertise GPU-0a"))[:2] == [
        "driver nvml: failed: it hangs",
        "both advertise GPU-0a",
    ]


def test_a_column_without_a_value_is_left_out() -> None:
    assert "unit" not in drawn(report(resources=[resource("a")]))[-2].split()
    assert drawn(report(resources=[resource("a", unit_bytes=GIB)]))[-1].split() == ["a", "memory", "1Gi", "0", "8", "8"]


def test_a_note_that_several_resources_have_is_told_once() -> None:
    both = [resource(name, notes=["3g.40gb is not advertised"]) for name in ("a", "b")]
    assert drawn(report(resources=both))[-1] == "a, b: 3g.40gb is not advertised"


def test_a_resource_that_has_nothing_to_advertise_says_why_and_nothing_else() -> None:
    lonely = resource(
        "a", reason="there is no device to advertise as a: no card is assigned to it", notes=["only counts"]
    )
    assert drawn(report(resources=[lonely]))[-1] == "a: there is no device to advertise as a: no card is assigned to it"


def test_without_a_driver_its_reason_is_told_once() -> None:
    driver = {"name": "nvml", "state": "absent", "reason": "there is no library", "version": ""}
    empty = resource("a", reason="there is no device to advertise as a: there is no library", allocated=None)
    text = "\n".join(drawn(report(driver=driver, resources=[empty], allocations_unknown="nobody asked")))
    assert text.count("there is no library") == 1
    assert "nobody asked" not in text


def test_cards_are_in_the_order_of_their_indexes() -> None:
    lines = drawn(report(card(index=5), card(index=1)))
    assert [line.split()[1] for line in lines if line.startswith("GPU ")] == ["1", "5"]


def test_usual_cards_fit_into_eighty_columns() -> None:
    busy = card(use("a", 2), use("b", 4), model="NVIDIA H100 80GB HBM3", numa_node=1, used_bytes=3 * GIB)
    resources = [resource("nvidia.com/mig-1g.10gb.shared", unit_bytes=GIB)]
    assert drawn(report(busy, resources=resources), width=80) == drawn(report(busy, resources=resources), width=200)


def test_a_terminal_gets_a_colour_per_pod() -> None:
    text = "\n".join(drawn(report(card(use("a", 2), use("b", 2))), colour=True))
    assert text.count("\x1b[7;36mA") == 2
    assert text.count("\x1b[7;35mB") == 2


def test_a_container_that_holds_nothing_and_uses_the_card_is_shown() -> None:
    stranger = {"namespace": "ml", "pod": "greedy", "container": "main", "used_bytes": 3 * GIB, "pids": [7]}
    assert "ml/greedy/main  without an allocation, 3Gi in use" in "\n".join(
        drawn(report(card(unallocated_containers=[stranger])))
    )


def test_units_that_were_allocated_a_moment_ago_are_drawn_apart() -> None:
    lines = drawn(report(card(use("one", 2), allocated_units=6, unconfirmed_units=4)))
    (bar,) = [line for line in lines if "  [" in line]
    assert f"[{'A' * 8}{'+' * 16}{'·' * 8}]  6/8 of aliyun.com/gpu-mem, 4 of them allocated and not confirmed" in bar


def test_a_holder_by_a_former_name_is_drawn_in_current_units_and_named_in_its_own() -> None:
    former = use("old", 5, card_units=4, orphaned=True, resource="example.com/mem")
    lines = drawn(report(card(former, allocated_units=4)))
    assert any(f"[{'A' * 16}{'·' * 16}]  4/8 of aliyun.com/gpu-mem" in line for line in lines)
    assert any("A default/old/main  5 of example.com/mem (5Gi)" in line for line in lines)
