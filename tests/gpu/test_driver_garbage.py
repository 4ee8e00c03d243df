"""A driver that answers nonsense: the card carries an error or the field is unknown, and nothing crashes."""

from collections.abc import Callable
from typing import Any

import pytest

Watch = Callable[..., Any]
GIB = 1 << 30
NAN = 0x7FF8000000000000
INFINITE = 0x7FF0000000000000
MINUS_ONE = (1 << 64) - 1
SANE = (80 * GIB, GIB)


@pytest.mark.parametrize(
    ("total", "used"),
    [
        (0, 0),
        (MINUS_ONE, 0),
        pytest.param(1 << 63, 0, marks=pytest.mark.whole),
        pytest.param(NAN, 0, marks=pytest.mark.whole),
        pytest.param(INFINITE, 0, marks=pytest.mark.whole),
        (80 * GIB, 81 * GIB),
        pytest.param(80 * GIB, MINUS_ONE, marks=pytest.mark.whole),
        (1000, 0),
    ],
)
def test_memory_that_cannot_be_is_an_error_of_the_card_that_keeps_its_size(
    nvml: Any, watch: Watch, total: int, used: int
) -> None:
    watched = watch(nvml)
    before = watched.running()
    nvml.state.card[0].total, nvml.state.card[0].used = total, used
    snapshot = watched.until(lambda snapshot: snapshot.telemetry[snapshot.cards[0].uuid].error)
    assert snapshot.cards == before.cards
    assert snapshot.telemetry[snapshot.cards[0].uuid].error_code == 999
    assert snapshot.telemetry[snapshot.cards[1].uuid].error == ""
    nvml.state.card[0].total, nvml.state.card[0].used = SANE
    watched.until(lambda snapshot: not snapshot.telemetry[snapshot.cards[0].uuid].error)


@pytest.mark.parametrize("supported", [True, False], ids=["0 bytes", "not supported"])
def test_a_card_that_does_not_tell_its_memory_is_there_and_well(nvml: Any, watch: Watch, *, supported: bool) -> None:
    card = nvml.state.card[0]
    card.name, card.total = b"NVIDIA GB10", 0
    for symbol in () if supported else ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"):
        nvml.fail(symbol, 3, card)
    snapshot = watch(nvml).running()
    found = snapshot.cards[0]
    telemetry = snapshot.telemetry[found.uuid]
    assert (found.model, found.memory, telemetry.error, telemetry.used) == ("NVIDIA GB10", 0, "", None)
    assert snapshot.unreadable == ()


def test_a_card_that_told_its_memory_before_and_tells_none_now_keeps_its_size(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml)
    before = watched.running()
    nvml.state.card[0].total = 0
    snapshot = watched.until(lambda snapshot: snapshot.telemetry[snapshot.cards[0].uuid].error)
    assert snapshot.cards == before.cards


def test_a_card_whose_memory_never_made_sense_is_left_out_with_the_numbers(nvml: Any, watch: Watch) -> None:
    nvml.state.card[0].total = MINUS_ONE
    snapshot = watch(nvml).running()
    assert [card.index for card in snapshot.cards] == [1]
    card = f"card 0 (GPU-{0:08}-0000-0000-0000-{0:012})"
    assert snapshot.unreadable == (f"{card}: the driver reports 0 bytes used of {MINUS_ONE}, which is implausible",)


@pytest.mark.parametrize("uuid", [b"", b"\xff\xfe\xfd", b"GPU-", b"card 0", b"GPU-\x01\x02\x03\x04", b"MIG-00000000"])
def test_a_card_without_a_proper_uuid_is_left_out(nvml: Any, watch: Watch, uuid: bytes) -> None:
    nvml.state.card[0].uuid = uuid
    snapshot = watch(nvml).running()
    assert [card.index for card in snapshot.cards] == [1]
    assert snapshot.unreadable[0].startswith("card 0: nvmlDeviceGetUUID returned")


def test_two_cards_with_one_uuid_are_one(nvml: Any, watch: Watch) -> None:
    nvml.state.card[1].uuid = nvml.state.card[0].uuid
    snapshot = watch(nvml).running()
    assert [card.index for card in snapshot.cards] == [0]
    assert snapshot.unreadable == (f"card 1 has the UUID of another card: {snapshot.cards[0].uuid}",)


@pytest.mark.parametrize(
    ("name", "model"),
    [(b"", "unknown"), (b"\xff\xfe", "unknown"), (b"A\x1b[31m10\n ", "A[31m10"), ("Größe".encode(), "Größe")],
)
def test_a_name_is_printable_whatever_it_was(nvml: Any, watch: Watch, name: bytes, model: str) -> None:
    nvml.state.card[0].name = name
    assert watch(nvml).running().cards[0].model == model


@pytest.mark.parametrize(
    ("bus", "address"),
    [
        (b"00000000:3B:00.0", "0000:3b:00.0"),
        (b"0000:AF:1F.7", "0000:af:1f.7"),
        (b"00010000:01:00.0", "10000:01:00.0"),
        (b"", ""),
        (b"../../etc", ""),
        (b"\xff\xff", ""),
    ],
)
def test_an_address_is_that_of_sysfs_or_none(nvml: Any, watch: Watch, bus: bytes, address: str) -> None:
    nvml.state.card[0].bus = bus
    assert watch(nvml).running().cards[0].pci == address


@pytest.mark.parametrize(("bus", "root"), [(b"00000000:3A:00.0", "pci0000:30"), (b"00000000:EE:00.0", ""), (b"", "")])
def test_the_root_complex_is_that_of_sysfs_or_none(nvml: Any, watch: Watch, bus: bytes, root: str) -> None:
    nvml.state.card[0].bus = bus
    assert watch(nvml).running().cards[0].pcie_root == root


@pytest.mark.parametrize(("written", "node"), [("1\n", 1), ("-1\n", None), ("", None), ("x", None), ("0", 0)])
def test_the_numa_node_is_that_of_sysfs_or_none(nvml: Any, watch: Watch, written: str, node: int | None) -> None:
    (nvml.sysfs / "bus/pci/devices/0000:3a:00.0/numa_node").write_text(written)
    assert watch(nvml).running().cards[0].numa_node == node


@pytest.mark.parametrize(
    ("kind", "error", "bits", "known"),
    [
        (1, 0, 2, 2),
        (3, 0, 7, 7),
        (0, 0, 0x4008000000000000, 3),  # 3.0
        (0, 0, NAN, None),
        (0, 0, INFINITE, None),
        (0, 0, 0xBFF0000000000000, None),  # -1.0
        (4, 0, MINUS_ONE, None),
        (3, 0, MINUS_ONE, None),
        (77, 0, 1, None),
        (1, 3, 1, None),
        (1, 999, 1, None),
    ],
)
def test_a_field_value_is_a_whole_number_or_unknown(
    nvml: Any, watch: Watch, kind: int, error: int, bits: int, known: int | None
) -> None:
    for value in (nvml.state.card[0].recovery, nvml.state.card[0].ecc):
        value.type, value.error, value.bits = kind, error, bits
    snapshot = watch(nvml).running()
    telemetry = snapshot.telemetry[snapshot.cards[0].uuid]
    assert (telemetry.recovery_action, telemetry.uncorrected_ecc, telemetry.error) == (known, known, "")


def test_a_recovery_action_beyond_all_sense_is_unknown(nvml: Any, watch: Watch) -> None:
    nvml.state.card[0].recovery.bits = 4_000_000_000
    snapshot = watch(nvml).running()
    assert snapshot.telemetry[snapshot.cards[0].uuid].recovery_action is None


def test_a_made_up_number_of_cards_is_a_failure_and_not_a_loop(nvml: Any, watch: Watch) -> None:
    nvml.state.count = 4_000_000_000
    snapshot = watch(nvml).until(lambda snapshot: snapshot.state == "failed")
    assert "counts 4000000000 cards" in snapshot.reason


def test_a_made_up_number_of_processes_costs_the_process_list_alone(nvml: Any, watch: Watch) -> None:
    nvml.state.process_count = 1_500_000_000
    snapshot = watch(nvml, hang_after=20.0).running()
    assert len(snapshot.cards) == 2
    assert snapshot.processes == ()


def test_a_made_up_number_of_instances_is_bounded(nvml: Any, watch: Watch) -> None:
    nvml.add_instance(nvml.state.card[0])
    nvml.state.max_parts = 4_000_000_000
    assert len(watch(nvml).running().cards[0].instances) == 1


def test_a_compute_capability_that_cannot_be_is_zero(nvml: Any, watch: Watch) -> None:
    nvml.state.card[0].major = 0xFFFFFFFF
    assert watch(nvml).running().cards[0].compute_capability == (0, 0)


def test_processes_of_no_pid_or_a_foreign_namespace_are_not_listed(nvml: Any, watch: Watch) -> None:
    for pid in (0, 0xFFFFFFFF, 1 << 23, 42):
        nvml.add_process(nvml.state.card[0], pid, GIB)
    assert [process.pid for process in watch(nvml).running().processes] == [42]


def test_an_unknown_kind_of_event_is_passed_over(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml)
    watched.until(lambda _: nvml.calls("nvmlDeviceRegisterEvents") == 2)
    nvml.event(64, 1 << 40)
    nvml.event(0, 0x8, 79)
    assert watched.event(lambda event: event.kind == "xid").code == 79
    assert len(watched.events) == 1
