"""A driver that hangs, crashes, fails and lies; on the mock alone."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from tests import suites

from nodeplug_gpu.driver.calls import DRIVER_WIDE, GONE, SYMBOLS

CRASH = 0xDEAD
ASKED_FOR = ("nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceGetMemoryLimits_v1")
"""Of limits, which nobody wants here: `test_driver_limits` has them."""
POLLED = tuple(name for name in SYMBOLS if name not in ASKED_FOR)
OLD = {name: name.replace("_v2", "_v3") for name in SYMBOLS if name.endswith("RunningProcesses_v2")}
KINDS = {
    "nvmlInitWithFlags",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetComputeRunningProcesses_v2",
    "nvmlDeviceGetNvLinkRemotePciInfo_v2",
    "nvmlEventSetWait_v2",
}
"""Of the driver, of a card, of an instance, of an older driver, of pairs, of events."""
SYMBOL = suites.divided(POLLED, KINDS, POLLED[::3])
OTHERS = [1, 2, 4, 7, 10, 11, 12, 14, 17, 18, 19, 20, 21, 23, 25, 27, 28, 29, 12345]
ERRORS = [3, 6, 9, 13, 15, 16, 999, *(pytest.param(code, marks=pytest.mark.soak) for code in OTHERS)]
"""Not supported, not found, no driver, no such function, lost, to be reset, unknown; then those that are like them."""

Watch = Callable[..., Any]


@pytest.fixture
def lone(nvml: Any) -> Any:
    """A driver with one card, of which every call is used."""
    nvml.state.count = 1
    nvml.add_instance(nvml.state.card[0])
    return nvml


@pytest.fixture
def divided(nvml: Any) -> Any:
    """A driver of which every call is used: with MIG, a process, a link, and with a broken event set to free."""
    card = nvml.add_card()
    nvml.add_instance(card)
    nvml.add_process(nvml.state.card[0], 11, 1 << 30)
    nvml.link(nvml.state.card[0], bytes(nvml.state.card[1].bus))
    return nvml


def provoke(nvml: Any, symbol: str) -> None:
    """Have a call used that is needed only when another one does not work."""
    if symbol in OLD:
        nvml.fail(OLD[symbol], 13)
    if symbol == "nvmlDeviceGetMemoryInfo":
        nvml.fail("nvmlDeviceGetMemoryInfo_v2", 13)
    if symbol == "nvmlEventSetFree":
        nvml.fail("nvmlEventSetWait_v2", 999)
    first, second = nvml.state.card[0], nvml.state.card[1]
    if symbol == "nvmlDeviceGetNvLinkRemotePciInfo_v2":
        nvml.link(first, bytes(second.bus))
    if symbol == "nvmlDeviceGetTopologyCommonAncestor":
        nvml.state.count = 2
    if symbol in {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetProcessUtilization"}:
        first.mig = 0
        nvml.add_process(first, 11, 1 << 30)


@pytest.mark.parametrize("symbol", SYMBOL)
def test_a_hang_in_any_call_is_seen_named_and_survived(lone: Any, watch: Watch, symbol: str) -> None:
    provoke(lone, symbol)
    lone.hang(symbol)
    watched = watch(lone, hang_after=0.15, retry_after=0.2)
    watched.until(lambda snapshot: f"the driver hangs: {symbol}" in snapshot.reason)
    lone.hang(symbol, hangs=False)
    watched.until(lambda snapshot: snapshot.state == "running" and len(snapshot.cards) == lone.state.count)


@pytest.mark.parametrize("symbol", SYMBOL)
def test_a_crash_in_any_call_is_survived(lone: Any, watch: Watch, symbol: str) -> None:
    provoke(lone, symbol)
    lone.fail(symbol, CRASH)
    watched = watch(lone)
    watched.until(lambda snapshot: snapshot.reason == "the driver process was ended by SIGSEGV")
    lone.fail(symbol, 0)
    assert len(watched.running().cards) == lone.state.count


def test_no_call_is_made_that_the_table_of_symbols_does_not_name(divided: Any) -> None:
    code = """if True:
        import sys, pathlib, pynvml
        asked = set()
        look_up = pynvml._nvmlGetFunctionPointer
        pynvml._nvmlGetFunctionPointer = lambda name: asked.add(name) or look_up(name)
        from nodeplug_gpu.driver import calls, events, library, nvml
        library.load(pathlib.Path(sys.argv[1]))
        calls = calls.Calls()
        calls("nvmlInitWithFlags", 0)
        reader = nvml.Reader(calls, pathlib.Path("/sys"), print)
        assert len(reader.poll().cards) == 3
        events.Listener(calls, reader, print).wait(0.01)
        print(*sorted(asked))
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code, str(divided.root)]
    asked = subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout.split()
    assert set(asked) <= SYMBOLS.keys()
    rare = {*OLD, *ASKED_FOR, "nvmlDeviceGetMemoryInfo", "nvmlEventSetFree"}
    assert set(asked) == SYMBOLS.keys() - rare


@pytest.mark.parametrize("symbol", SYMBOL)
def test_a_library_without_any_one_symbol_shows_what_it_can(divided: Any, watch: Watch, symbol: str) -> None:
    divided.install(hidden=[symbol])
    watched = watch(divided)
    if symbol in {"nvmlInitWithFlags", "nvmlDeviceGetCount_v2"}:
        snapshot = watched.until(lambda snapshot: snapshot.state == "failed")
        assert symbol in snapshot.reason
        assert "does not have this function" in snapshot.reason
        return
    snapshot = watched.running()
    if symbol in {"nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID"}:
        assert snapshot.cards == ()
        assert all(symbol in sentence for sentence in snapshot.unreadable)
        assert len(snapshot.unreadable) == 3
    else:
        assert len(snapshot.cards) == 3
        assert all(telemetry.error == "" for telemetry in snapshot.telemetry.values())


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_of_the_first_call_is_a_state_with_a_reason(nvml: Any, watch: Watch, code: int) -> None:
    nvml.fail("nvmlInitWithFlags", code)
    watched = watch(nvml)
    snapshot = watched.until(lambda snapshot: snapshot.state != "starting")
    assert snapshot.state == ("absent" if code == 9 else "failed")
    assert f"(NVML error {code})" in snapshot.reason
    nvml.fail("nvmlInitWithFlags", 0)
    assert len(watched.running().cards) == 2


@pytest.mark.parametrize("code", ERRORS)
def test_every_error_of_one_cards_probe_concerns_that_card_alone(nvml: Any, watch: Watch, code: int) -> None:
    watched = watch(nvml)
    cards = watched.running().cards
    hurt, well = cards
    for symbol in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo"):
        nvml.fail(symbol, code, nvml.state.card[0])
    if code in DRIVER_WIDE:
        snapshot = watched.until(lambda snapshot: snapshot.state != "running")
        assert snapshot.cards == cards
        assert f"(NVML error {code})" in snapshot.reason
    elif code in GONE:
        watched.until(lambda snapshot: snapshot.cards == (well,))
    elif code == 3:
        watched.until(lambda snapshot: [card.memory for card in snapshot.cards] == [0, well.memory])
    else:
        snapshot = watched.until(lambda snapshot: snapshot.telemetry and snapshot.telemetry[hurt.uuid].error)
        assert snapshot.cards == cards
        assert snapshot.telemetry[hurt.uuid].error_code == code
        assert not snapshot.telemetry[well.uuid].error


@pytest.mark.parametrize("code", ERRORS)
def test_no_error_of_what_a_card_may_lack_hurts_it_unless_the_card_is_lost(nvml: Any, watch: Watch, code: int) -> None:
    nvml.fail("nvmlDeviceGetFieldValues", code, nvml.state.card[1])
    watched = watch(nvml)
    if code in DRIVER_WIDE:
        assert watched.until(lambda snapshot: snapshot.state != "starting").state in {"absent", "failed"}
        return
    snapshot = watched.running()
    if code in {15, 16}:
        assert len(snapshot.cards) == 1
        assert f"(NVML error {code})" in snapshot.unreadable[0]
    else:
        assert snapshot.telemetry[snapshot.cards[1].uuid].recovery_action is None
        assert snapshot.telemetry[snapshot.cards[0].uuid].recovery_action == 0


@pytest.mark.parametrize("code", [9, 18])
def test_a_driver_that_is_unloaded_while_it_runs_is_found_again(nvml: Any, watch: Watch, code: int) -> None:
    watched = watch(nvml)
    before = watched.running()
    nvml.fail("nvmlDeviceGetCount_v2", code)
    nvml.fail("nvmlInitWithFlags", code)
    snapshot = watched.until(lambda snapshot: snapshot.state != "running")
    assert (snapshot.state, snapshot.cards) == ("absent" if code == 9 else "failed", before.cards)
    nvml.fail("nvmlDeviceGetCount_v2", 0)
    nvml.fail("nvmlInitWithFlags", 0)
    assert watched.running().generation > before.generation


def test_a_node_without_a_library_says_so_and_finds_one_that_is_installed_later(nvml: Any, watch: Watch) -> None:
    nvml.uninstall()
    watched = watch(nvml)
    snapshot = watched.until(lambda snapshot: snapshot.state == "absent")
    assert snapshot.cards == ()
    assert snapshot.reason.startswith(f"there is no libnvidia-ml.so.1 below {nvml.root}")
    nvml.install()
    assert len(watched.running().cards) == 2


def test_a_library_that_cannot_be_loaded_is_a_failure_with_the_loaders_words(nvml: Any, watch: Watch) -> None:
    nvml.path.write_bytes(b"no library")
    snapshot = watch(nvml).until(lambda snapshot: snapshot.state != "starting")
    assert snapshot.state == "failed"
    assert "libnvidia-ml.so.1 cannot be loaded" in snapshot.reason


def test_a_library_of_another_machine_in_an_earlier_folder_is_passed_over(nvml: Any, watch: Watch) -> None:
    other = nvml.root / "usr/lib/x86_64-linux-gnu"
    other.mkdir(parents=True)
    for file in nvml.path.parent.iterdir():
        (other / file.name).hardlink_to(file)
    nvml.path.unlink()
    nvml.path.write_bytes(b"no library")
    assert len(watch(nvml).running().cards) == 2


def test_a_library_that_is_swapped_on_disk_is_loaded_without_a_failure(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml)
    before = watched.running()
    nvml.install()
    after = watched.until(lambda snapshot: snapshot.generation > before.generation)
    assert after.cards == before.cards
    assert {snapshot.state for snapshot in watched.snapshots} == {"running"}


def test_a_library_that_is_removed_leaves_the_cards_in_sight_and_the_driver_absent(nvml: Any, watch: Watch) -> None:
    watched = watch(nvml)
    before = watched.running()
    nvml.uninstall()
    assert watched.until(lambda snapshot: snapshot.state == "absent").cards == before.cards


def test_the_driver_process_ends_with_its_parent(nvml: Any) -> None:
    code = """if True:
        import logging, pathlib, sys, time
        from nodeplug_gpu.driver.process import NvmlDriver
        log = logging.LoggerAdapter(logging.getLogger("x"), {})
        driver = NvmlDriver(pathlib.Path(sys.argv[1]), 0.05, 60.0, log)
        driver.start(lambda snapshot, events: None)
        while driver.snapshot.state != "running":
            time.sleep(0.01)
        print(driver.pid, flush=True)
        time.sleep(3600)
    """
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code, str(nvml.root)], stdout=subprocess.PIPE, env=env) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        nvml.hang("nvmlDeviceGetCount_v2")
        handle = os.pidfd_open(child)
        parent.send_signal(signal.SIGKILL)
        parent.wait()
    assert select.select([handle], [], [], 30.0)[0], "the driver process outlived its parent"
    os.close(handle)
